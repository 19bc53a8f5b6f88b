//! Training on text as tokens from the command line: a small GPT trains on it and resumes in the middle of an epoch.

#![cfg(feature = "text")]

use crate::common::{Folder, assert_says, example, failure, json, losses, success};

fn testdata(path: &str) -> String {
    example(&format!("../testdata/{path}"))
}

#[test]
fn a_model_of_language_trains_on_text_and_goes_on_bit_for_bit() {
    let (folder, model, tokenizer) =
        (Folder::new(), testdata("golden/tiny-gpt/model.onnx"), testdata("data/wordpiece.json"));
    let text = std::fs::read_to_string(testdata("data/text.txt")).unwrap().repeat(30);
    std::fs::write(folder.path("a.txt"), &text).unwrap();
    let data = folder.text("a.txt");
    let train = |more: &[&str]| {
        let flags =
            ["train", &model, "--data", &data, "--tokenizer", &tokenizer, "--class-axis", "-1", "--shuffle", "1"];
        let recipe = ["--optimizer", "adamw", "--learning-rate", "0.003", "--threads", "1"];
        json(&[flags.as_slice(), &recipe, more].concat())
    };
    let saved = ["whole", "resumed"].map(|name| folder.text(&format!("{name}.onnx")));
    let whole = train(&["--steps", "6", "--save", &saved[0], "--split", "80/20", "--metrics", "perplexity"]);
    let losses = losses(&whole);
    assert!(losses[3] < losses[0] - 0.5, "{losses:?}");
    let checkpoint = folder.text("checkpoint");
    // A batch takes 4 KiB, and nothing of the texts is kept in memory.
    train(&["--steps", "2", "--checkpoint", &checkpoint, "--split", "80/20", "--data-memory", "14KiB"]);
    train(&["--steps", "6", "--resume", &checkpoint, "--save", &saved[1], "--split", "80/20"]);
    let [whole, resumed] = saved.map(|path| std::fs::read(path).unwrap());
    assert!(whole == resumed);
    let flags = ["train", &model, "--data", &data, "--class-axis", "-1", "--steps", "1"];
    assert_says(&failure(1, &flags), &["a.txt: text requires a tokenizer; pass a tokenizer.json with --tokenizer"]);
    let lines = std::fs::read_to_string(testdata("data/text.jsonl")).unwrap().repeat(4);
    std::fs::write(folder.path("lines.jsonl"), lines).unwrap();
    let found = success(&["data", &folder.text("lines.jsonl"), "--tokenizer", &tokenizer, "--end-token", ""]);
    assert_says(&found, &["JSON lines in 1 file", "documents end without a token"]);
}
