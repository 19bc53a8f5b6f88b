//! `FOREBAY_ISA`: other vector instructions, the same bits.

use crate::common::{Folder, assert_says, digits_data, digits_model, example, forebay};

/// Returns the file that training writes with these instructions, or `None` if the processor does not have them.
fn trained(folder: &Folder, arguments: &[&str], isa: &str) -> Option<Vec<u8>> {
    let saved = folder.text(isa);
    let flags = ["--steps", "2", "--momentum", "0.9", "--no-compare", "--save", &saved];
    let output = forebay(&[&["train"], arguments, flags.as_slice()].concat()).env("FOREBAY_ISA", isa).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() {
        return Some(std::fs::read(&saved).unwrap());
    }
    assert_says(&error, &[&format!("FOREBAY_ISA={isa}"), "does not have these instructions", "scalar"]);
    None
}

#[test]
fn wider_vectors_give_the_same_bits() {
    let gpt = ["model.onnx", "inputs.npz"].map(|name| example(&format!("../testdata/golden/tiny-gpt/{name}")));
    let digits = [digits_model(), digits_data()];
    let digits = [&digits[0], "--data", &digits[1], "--batch-size", "50", "--input-scale", "0.0625"];
    for arguments in [digits.as_slice(), &[&gpt[0], "--data", &gpt[1], "--class-axis", "-1"]] {
        let folder = Folder::new();
        if let Some(narrow) = trained(&folder, arguments, "avx2")
            && let Some(wide) = trained(&folder, arguments, "avx512")
        {
            assert!(narrow == wide, "{arguments:?}");
        }
        assert!(trained(&folder, arguments, "scalar").is_some(), "every processor runs what it was compiled for");
    }
}

#[test]
fn instructions_that_there_are_not_are_refused() {
    let output =
        forebay(&["run", &digits_model(), "--inputs", &digits_data()]).env("FOREBAY_ISA", "mmx").output().unwrap();
    assert!(!output.status.success());
    assert_says(&String::from_utf8_lossy(&output.stderr), &["FOREBAY_ISA=mmx", "scalar"]);
}
