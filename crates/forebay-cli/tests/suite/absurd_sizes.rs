//! Models of a few hundred bytes whose tensors or windows exceed any machine: a clear error, or a correct result on the actual data.

use crate::common::{self, Folder, assert_says, failure, message, number, success};
use forebay::Tensor;
use forebay::data::npy;

/// A node's attribute: a list of integers, or a string.
enum Attribute {
    Integers(&'static str, Vec<i64>),
    Text(&'static str, &'static str),
}

/// A model of one node with input `x`, output `y` and, if it has sizes, a weight `w` of zeros.
fn model(operator: &str, attributes: &[Attribute], x: &[u64], w: &[u64]) -> Vec<u8> {
    let attribute = |attribute: &Attribute| match attribute {
        Attribute::Integers(name, values) => {
            let values: Vec<u8> = values.iter().flat_map(|&value| number(8, value)).collect();
            message(5, &[message(1, name.as_bytes()), values, number(20, 7)].concat())
        }
        Attribute::Text(name, text) => {
            message(5, &[message(1, name.as_bytes()), message(4, text.as_bytes()), number(20, 3)].concat())
        }
    };
    let mut node = vec![message(1, b"x")];
    let mut graph = Vec::new();
    if !w.is_empty() {
        node.push(message(1, b"w"));
        let sizes: Vec<u8> = w.iter().flat_map(|&size| number(1, size as i64)).collect();
        let zeros = message(9, &vec![0; 4 * w.iter().product::<u64>() as usize]);
        graph.push(message(5, &[sizes, number(2, 1), message(8, b"w"), zeros].concat()));
    }
    node.extend([message(2, b"y"), message(3, b"the node"), message(4, operator.as_bytes())]);
    node.extend(attributes.iter().map(attribute));
    let sizes: Vec<u8> = x.iter().flat_map(|&size| message(1, &number(1, size as i64))).collect();
    let ty = |sizes: &[u8]| message(2, &message(1, &[number(1, 1), sizes.to_vec()].concat()));
    graph.extend([message(1, &node.concat()), message(2, b"graph")]);
    graph.push(message(11, &[message(1, b"x"), ty(&message(2, &sizes))].concat()));
    graph.push(message(12, &[message(1, b"y"), ty(&[])].concat()));
    let operators = [message(1, b""), number(2, 17)].concat();
    [number(1, 8), message(7, &graph.concat()), message(8, &operators)].concat()
}

#[test]
fn convolutions_that_no_machine_holds_are_refused() {
    use Attribute::Integers;
    let folder = Folder::new();
    let weights = [4, 1, 3, 3];
    let models = [
        model("Conv", &[Integers("pads", vec![1; 4])], &[1, 1, 8, 1 << 40], &weights),
        model("Conv", &[Integers("pads", vec![1; 4])], &[1, 1, 8, 1 << 36], &weights),
        model("Conv", &[Integers("pads", vec![1 << 40, 0, 0, 0])], &[1, 1, 8, 8], &weights),
        model("ConvTranspose", &[Integers("strides", vec![1 << 30, 1 << 20])], &[1, 4, 8, 8], &weights),
    ];
    for (number, model) in models.iter().enumerate() {
        let path = folder.write(&format!("{number}.onnx"), model);
        assert_says(&failure(1, &["plan", &path]), &["the node"]);
        // A machine that is only described can have more memory than this one.
        let _ = common::forebay(&["plan", &path, "--machine", "h200"]).output().map(|output| {
            assert!(output.status.code().is_some_and(|code| code < 2), "{number}: {output:?}");
        });
    }
}

#[test]
fn windows_far_larger_than_the_image_see_all_of_it() {
    let folder = Folder::new();
    let kernel = Attribute::Integers("kernel_shape", vec![1 << 30, 1 << 30]);
    let pads = Attribute::Text("auto_pad", "SAME_UPPER");
    let path = folder.write("pool.onnx", &model("MaxPool", &[kernel, pads], &[1, 1, 8, 8], &[]));
    let input = folder.path("x.npy");
    let values: Vec<f32> = (0..64).map(|i| i as f32).collect();
    npy::write(&input, &Tensor::from_f32(&[1, 1, 8, 8], &values)).unwrap();
    let (input, output) = (format!("x={}", input.display()), folder.text("outputs"));
    success(&["run", &path, "--input", &input, "--output-dir", &output]);
    let y = npy::read(&folder.path("outputs").join("y.npy")).unwrap();
    assert!(y == Tensor::from_f32(&[1, 1, 8, 8], &[63.0; 64]), "{y:?}");
}
