//! Functions of a model: names of their values and of their nested graphs.

use super::*;
use crate::graph::{Node, Subgraph};

/// A function without inputs and outputs in the domain `local`.
fn procedure(name: &str, node: Vec<NodeProto>) -> FunctionProto {
    let set = |domain: Option<&str>, version| OperatorSetIdProto {
        domain: domain.map(str::to_string),
        version: Some(version),
    };
    FunctionProto {
        name: Some(name.to_string()),
        domain: Some("local".to_string()),
        node,
        opset_import: vec![set(None, 17), set(Some("local"), 1)],
        ..FunctionProto::default()
    }
}

/// A call of a function without inputs and outputs.
fn plain_call(name: &str) -> NodeProto {
    NodeProto { domain: Some("local".to_string()), ..node(name, &[], &[]) }
}

/// The message with which a model is refused that calls the last of these functions.
fn refused(functions: Vec<FunctionProto>) -> String {
    let last = functions.last().map(|function| function.name().to_string()).unwrap_or_default();
    let mut proto = model(GraphProto { node: vec![plain_call(&last)], ..addition() });
    proto.functions = functions;
    proto.opset_import.push(OperatorSetIdProto { domain: Some("local".to_string()), version: Some(1) });
    read(&proto.encode_to_vec(), None).unwrap_err().to_string()
}

#[test]
fn functions_that_call_each_other_too_often_are_refused() {
    // Without nodes, every function calls the next one twice.
    let name = |level: usize| format!("f{level}");
    let calls = |level: usize| match level {
        0 => Vec::new(),
        _ => vec![plain_call(&name(level - 1)), plain_call(&name(level - 1))],
    };
    let error = refused((0..40).map(|level| procedure(&name(level), calls(level))).collect());
    assert!(error.contains("expand to more than"), "{error}");
    // A function that calls itself, directly and in a branch.
    let error = refused(vec![procedure("f", vec![plain_call("f")])]);
    assert!(error.contains("calls itself"), "{error}");
    let output = ValueInfoProto { name: Some("o".to_string()), ..ValueInfoProto::default() };
    let inside = GraphProto {
        node: vec![
            constant("o", AttributeProto { i: Some(1), ..named("value_int", AttributeType::Int) }),
            plain_call("f"),
        ],
        output: vec![output],
        ..GraphProto::default()
    };
    let branch = |name: &str| AttributeProto { g: Some(inside.clone()), ..named(name, AttributeType::Graph) };
    let condition = constant("c", AttributeProto { i: Some(1), ..named("value_int", AttributeType::Int) });
    let chosen =
        NodeProto { attribute: vec![branch("then_branch"), branch("else_branch")], ..node("If", &["c"], &["y"]) };
    let error = refused(vec![procedure("f", vec![condition, chosen])]);
    assert!(error.contains("as if a function called itself"), "{error}");
}

/// A function f(a, w, c) = if c then a - w else -a, whose graphs define `t` and `y/t`.
fn function() -> FunctionProto {
    let branch = |name: &str, nodes: Vec<NodeProto>, output: &str| {
        let output = ValueInfoProto { name: Some(output.into()), ..ValueInfoProto::default() };
        let inside = GraphProto { node: nodes, output: vec![output], ..GraphProto::default() };
        AttributeProto { g: Some(inside), ..named(name, AttributeType::Graph) }
    };
    let difference = vec![node("Neg", &["w"], &["t"]), node("Add", &["a", "t"], &["o"])];
    let branches =
        vec![branch("then_branch", difference, "o"), branch("else_branch", vec![node("Neg", &["a"], &["b"])], "b")];
    FunctionProto {
        name: Some("f".to_string()),
        domain: Some("local".to_string()),
        input: ["a", "w", "c"].map(String::from).to_vec(),
        output: vec!["b".to_string()],
        node: vec![NodeProto { attribute: branches, ..node("If", &["c"], &["b"]) }],
        opset_import: vec![OperatorSetIdProto { domain: None, version: Some(17) }],
        ..FunctionProto::default()
    }
}

fn called(node: &Node) -> [Subgraph; 2] {
    let Operation::Onnx { attributes, .. } = &node.operation else { panic!("an operator") };
    ["then_branch", "else_branch"].map(|name| match &attributes[name] {
        Attribute::Graph(inside) => (**inside).clone(),
        other => panic!("{other:?}"),
    })
}

/// The caller's values have the names of values inside the function, and a name that one of these would get.
#[test]
fn names_in_functions_hide_no_names_of_the_caller() {
    let call = |output: &str| NodeProto { domain: Some("local".to_string()), ..node("f", &["t", "x", "c"], &[output]) };
    let graph = GraphProto {
        node: vec![node("Relu", &["x"], &["t"]), node("Neg", &["t"], &["y/t"]), call("y"), call("z")],
        input: vec![info("x", &[2]), info("c", &[])],
        output: vec![info("y", &[2]), info("z", &[2]), info("y/t", &[2])],
        ..GraphProto::default()
    };
    let mut proto = model(graph);
    proto.functions = vec![function()];
    proto.opset_import.push(OperatorSetIdProto { domain: Some("local".to_string()), version: Some(1) });
    let graph = read(&proto.encode_to_vec(), None).unwrap().graph;
    let choices: Vec<&Node> = graph.nodes.iter().filter(|node| node.operation.name() == "If").collect();
    assert_eq!(choices.len(), 2);
    for (choice, own) in choices.into_iter().zip(["y/t/2", "z/t"]) {
        let [then, other] = called(choice);
        let names = |graph: &Graph, ids: &[Option<ValueId>]| -> Vec<String> {
            ids.iter().flatten().map(|&id| graph.value(id).name.clone()).collect()
        };
        let [negative, sum] = then.graph.nodes.as_slice() else { panic!("{:?}", then.graph.nodes) };
        assert_eq!(names(&then.graph, &negative.inputs), ["x"]);
        assert_eq!(names(&then.graph, &negative.outputs), [own]);
        assert_eq!(names(&then.graph, &sum.inputs), ["t", own]);
        assert_eq!(names(&other.graph, &other.graph.nodes[0].inputs), ["t"]);
        assert_eq!(names(&graph, &choice.inputs), ["c", "x", "t"]);
    }
}
