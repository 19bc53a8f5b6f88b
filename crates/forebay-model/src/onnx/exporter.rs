//! Undoes changes that PyTorch's exporters make because of the values that parameters happen to have, since training changes the values.
//!
//! Both exporters write parameters with equal values only once: the weights of all normalizations of a new network are ones, its biases are
//! zeros, and the layers of `nn.TransformerEncoder` are copies of each other. The older exporter leaves an `Identity` for each missing
//! parameter; the newer one records in the metadata of nodes which parameters they were made from. It also omits biases that are zero.
//! Parameters that the module shares stay one tensor.

use std::collections::{BTreeMap, BTreeSet};

use super::proto::tensor_proto::DataType as OnnxType;
use super::proto::{GraphProto, ModelProto, NodeProto, StringStringEntryProto, TensorProto, ValueInfoProto};
use super::skeleton::LeftOut;

/// The metadata key that says what a value is in the module.
const KIND: &str = "pkg.torch.export.graph_signature.InputSpec.kind";
/// The metadata key that names what a value was computed from during the export.
pub(super) const FOLDED_FROM: &str = "pkg.onnxscript.optimizer.folded_from";
/// The metadata key of the graph that maps arguments of the exported program to attributes of the module.
const SIGNATURE: &str = "pkg.torch.export.ExportedProgram.graph_signature";
/// The metadata key that holds the call from which a node was made.
pub(super) const CALL: &str = "pkg.torch.onnx.fx_node";
/// The metadata key that lists the modules around a node's call, from the outermost to the call itself.
const SCOPES: &str = "pkg.torch.onnx.name_scopes";
/// The metadata key that names the rules that changed a node.
const RULE: &str = "pkg.onnxscript.rewriter.rule_name";
/// The prefix of the names of the rules that remove biases of zeros.
const WITHOUT_BIAS: &str = "RemoveOptionalBias";
/// The most elements of a bias that is restored: sizes of weights have not been compared with their data yet.
const BIAS_ELEMENTS_MAX: i64 = 1 << 20;

/// Returns, for each value, whether PyTorch's exporter marks it as a parameter or as computed from parameters. Computed scalars are
/// constants of formulas.
pub(super) fn parameters(proto: &ModelProto) -> BTreeMap<String, bool> {
    let Some(graph) = &proto.graph else { return BTreeMap::new() };
    let signature = Signature::of(graph);
    let has_dimensions = |name: &str| {
        let found = graph.initializer.iter().find(|initializer| initializer.name() == name);
        found.is_some_and(|initializer| !initializer.dims.is_empty())
    };
    let kind = |info: &ValueInfoProto| {
        let is_parameter = match entry(&info.metadata_props, KIND) {
            Some(kind) => kind == "PARAMETER",
            None => {
                let folded_from = entry(&info.metadata_props, FOLDED_FROM)?;
                signature.is_parameter_in(folded_from).then(|| has_dimensions(info.name()))?
            }
        };
        Some((info.name().to_string(), is_parameter))
    };
    graph.value_info.iter().filter_map(kind).collect()
}

/// Restores a separate initializer for each parameter of the module.
pub(super) fn restore_parameters(proto: &mut ModelProto, left_out: &mut LeftOut) {
    if proto.producer_name() != "pytorch" {
        return;
    }
    let Some(graph) = &mut proto.graph else { return };
    let mut initializers = Initializers::of(graph);
    let signature = Signature::of(graph);
    if signature.attributes.is_empty() {
        instead_of_identities(graph, &mut initializers, left_out);
    } else {
        by_calls(graph, &mut initializers, &signature, left_out);
        biases_of_zeros(graph, &mut initializers, &signature);
    }
}

/// Returns the metadata entry of a key.
pub(super) fn entry<'a>(metadata: &'a [StringStringEntryProto], key: &str) -> Option<&'a str> {
    metadata.iter().find(|entry| entry.key() == key).map(StringStringEntryProto::value)
}

/// The arguments of the exported program that are attributes of the module.
pub(super) struct Signature {
    /// For each argument, the attribute and its kind.
    attributes: BTreeMap<String, (String, String)>,
    /// The attributes that are parameters.
    pub(super) parameters: BTreeSet<String>,
}

impl Signature {
    /// Reads lines such as `p_layer_weight: PARAMETER target='layer.weight'`.
    pub(super) fn of(graph: &GraphProto) -> Signature {
        let text = entry(&graph.metadata_props, SIGNATURE).unwrap_or_default();
        let read = |line: &str| {
            let (argument, rest) = line.trim().split_once(": ")?;
            let (kind, rest) = rest.split_once(" target='")?;
            let (attribute, _) = rest.split_once('\'')?;
            let is_known = matches!(kind, "PARAMETER" | "BUFFER");
            is_known.then(|| (argument.to_string(), (attribute.to_string(), kind.to_string())))
        };
        let attributes: BTreeMap<_, _> = text.lines().filter_map(read).collect();
        let parameters = attributes.values().filter(|(_, kind)| kind == "PARAMETER");
        Signature { parameters: parameters.map(|(attribute, _)| attribute.clone()).collect(), attributes }
    }

    /// Returns whether a list of quoted names contains a parameter.
    fn is_parameter_in(&self, names: &str) -> bool {
        names.split(['\'', '"']).any(|name| self.parameters.contains(name))
    }

    /// Returns the attributes that are not parameters.
    pub(super) fn buffers(&self) -> BTreeSet<&str> {
        let buffers = self.attributes.values().filter(|(_, kind)| kind == "BUFFER");
        buffers.map(|(attribute, _)| &**attribute).collect()
    }

    /// Returns the attribute with this name in the module of a scope.
    fn attribute_in(&self, scope: &str, last: &str) -> Option<&(String, String)> {
        let wanted = format!("{scope}.{last}");
        self.attributes.values().find(|(attribute, _)| *attribute == wanted)
    }

    /// Returns the argument that passes an attribute.
    pub(super) fn argument(&self, attribute: &str) -> Option<&str> {
        self.attributes.iter().find(|(_, (found, _))| found == attribute).map(|(argument, _)| &**argument)
    }

    /// Returns the attribute that an argument of a call refers to.
    fn attribute(&self, argument: &str) -> Option<&(String, String)> {
        self.attributes.get(argument.strip_prefix('%')?)
    }

    /// Returns the attributes that a node was made from, in the order of the call's arguments.
    fn attributes_of(&self, node: &NodeProto) -> Vec<&(String, String)> {
        let call = entry(&node.metadata_props, CALL).unwrap_or_default();
        let words = call.split(|letter: char| !(letter.is_alphanumeric() || letter == '_' || letter == '%'));
        words.filter_map(|word| self.attribute(word)).collect()
    }
}

/// The floating-point initializers by name, and the names in use.
struct Initializers {
    places: BTreeMap<String, usize>,
    taken: BTreeSet<String>,
}

impl Initializers {
    fn of(graph: &GraphProto) -> Initializers {
        let floats = [OnnxType::Float, OnnxType::Double, OnnxType::Float16, OnnxType::Bfloat16];
        let all = graph.initializer.iter().enumerate();
        let named = all.filter(|(_, initializer)| floats.iter().any(|&float| float as i32 == initializer.data_type()));
        let outputs = graph.node.iter().flat_map(|node| &node.output);
        let inputs = graph.input.iter().filter_map(|input| input.name.as_ref());
        let other = graph.initializer.iter().filter_map(|initializer| initializer.name.as_ref());
        Initializers {
            places: named.map(|(i, initializer)| (initializer.name().to_string(), i)).collect(),
            taken: outputs.chain(inputs).chain(other).cloned().collect(),
        }
    }

    /// Adds an initializer with the contents of another.
    fn copy(&mut self, graph: &mut GraphProto, left_out: &mut LeftOut, from: &str, name: &str) {
        let Some(&place) = self.places.get(from) else { return };
        let mut copy = graph.initializer[place].clone();
        copy.name = Some(name.to_string());
        if let Some(data) = left_out.initializers.get(&place).cloned() {
            left_out.initializers.insert(graph.initializer.len(), data);
        }
        self.add(graph, copy);
    }

    fn add(&mut self, graph: &mut GraphProto, initializer: TensorProto) {
        self.taken.insert(initializer.name().to_string());
        self.places.insert(initializer.name().to_string(), graph.initializer.len());
        graph.initializer.push(initializer);
    }

    /// Returns an unused name.
    fn free_name(&self, wanted: &str) -> String {
        let numbered = (1..).map(|number| format!("{wanted}.{number}"));
        let mut names = std::iter::once(wanted.to_string()).chain(numbered);
        names.find(|name| !self.taken.contains(name)).unwrap_or_default()
    }
}

/// Returns the module given by a node's name: `/layers.1/norm_2/Mul` is the third call of `layers.1/norm`.
fn scope(node: &NodeProto) -> String {
    let (module, _) = node.name().rsplit_once('/').unwrap_or_default();
    let without_number = |part: &str| match part.rsplit_once('_') {
        Some((name, number)) if number.parse::<u32>().is_ok() => name.to_string(),
        _ => part.to_string(),
    };
    module.split('/').map(without_number).collect::<Vec<_>>().join("/")
}

/// Handles files from the older exporter: an `Identity` of an initializer is a separate parameter and has its name. If the exporter
/// computed with it, it has another name and is a separate parameter only if another module uses it.
fn instead_of_identities(graph: &mut GraphProto, initializers: &mut Initializers, left_out: &mut LeftOut) {
    let mut scopes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for node in graph.node.iter().filter(|node| node.op_type() != "Identity") {
        node.input.iter().for_each(|input| {
            scopes.entry(input.clone()).or_default().insert(scope(node));
        });
    }
    let outputs: BTreeSet<String> = graph.output.iter().map(|output| output.name().to_string()).collect();
    let mut gone = BTreeSet::new();
    for (i, node) in graph.node.clone().iter().enumerate() {
        let ("Identity", "", [from], [to]) = (node.op_type(), node.domain(), &*node.input, &*node.output) else {
            continue;
        };
        if !initializers.places.contains_key(from) || outputs.contains(to) {
            continue;
        }
        let is_shared = match (scopes.get(from), scopes.get(to)) {
            (Some(by), Some(also_by)) => !by.is_disjoint(also_by),
            _ => false,
        };
        if is_shared && to.contains("::") {
            continue;
        }
        initializers.copy(graph, left_out, from, to);
        gone.insert(i);
    }
    let attributes = std::mem::take(&mut left_out.attributes).into_iter();
    let kept = attributes.map(|((node, attribute), data)| ((node - gone.range(..node).count(), attribute), data));
    left_out.attributes = kept.collect();
    let mut place = 0..;
    graph.node.retain(|_| place.next().is_none_or(|i| !gone.contains(&i)));
}

/// Handles files from the newer exporter: nodes that read the same initializer were made from calls with different attributes of the
/// module.
fn by_calls(graph: &mut GraphProto, initializers: &mut Initializers, signature: &Signature, left_out: &mut LeftOut) {
    let infos: BTreeMap<String, ValueInfoProto> =
        graph.value_info.iter().map(|info| (info.name().to_string(), info.clone())).collect();
    let is_of_module = |name: &str| {
        let metadata = infos.get(name).map(|info| info.metadata_props.as_slice()).unwrap_or_default();
        entry(metadata, KIND).is_some()
            || entry(metadata, FOLDED_FROM).is_some_and(|names| signature.is_parameter_in(names))
    };
    let own: BTreeSet<String> = initializers.places.keys().filter(|name| is_of_module(name)).cloned().collect();
    let mut uses: BTreeMap<&String, Vec<(usize, usize)>> = BTreeMap::new();
    for (i, node) in graph.node.iter().enumerate() {
        for (k, input) in node.input.iter().enumerate().filter(|(_, input)| own.contains(*input)) {
            uses.entry(input).or_default().push((i, k));
        }
    }
    let mut readers: BTreeMap<&str, Vec<&NodeProto>> = BTreeMap::new();
    for node in &graph.node {
        node.input.iter().for_each(|input| readers.entry(input).or_default().push(node));
    }
    let mut changes = Vec::new();
    for (name, places) in uses.iter().filter(|(_, places)| places.len() > 1) {
        let of = |&(i, k): &(usize, usize)| match attributes_of_use(&graph.node[i], k, name, &own, signature) {
            none if none.is_empty() => attribute_by_scope(&graph.node[i], name, &readers, signature),
            found => found,
        };
        let keys: Vec<Vec<&(String, String)>> = places.iter().map(of).collect();
        let is_own = |key: &&Vec<&(String, String)>| key.iter().any(|(attribute, _)| attribute == *name);
        let home = keys.iter().find(is_own).or(keys.iter().find(|key| !key.is_empty())).cloned().unwrap_or_default();
        for (key, &place) in keys.into_iter().zip(places).filter(|(key, _)| !key.is_empty() && *key != home) {
            let key: Vec<(String, String)> = key.into_iter().cloned().collect();
            changes.push(((*name).clone(), key, place));
        }
    }
    let mut names: BTreeMap<(String, Vec<(String, String)>), String> = BTreeMap::new();
    for (from, key, (i, k)) in changes {
        let name = match names.get(&(from.clone(), key.clone())) {
            Some(name) => name.clone(),
            None => {
                let mut info = infos.get(&from).cloned().unwrap_or_default();
                // A value computed from an attribute is not the attribute itself.
                let is_attribute = entry(&info.metadata_props, KIND).is_some();
                let wanted = key.first().filter(|_| is_attribute && key.len() == 1).map_or(&from, |(name, _)| name);
                let name = initializers.free_name(wanted);
                initializers.copy(graph, left_out, &from, &name);
                info.name = Some(name.clone());
                if let ([(_, kind)], Some(stated)) =
                    (&*key, info.metadata_props.iter_mut().find(|entry| entry.key() == KIND))
                {
                    stated.value = Some(kind.clone());
                }
                graph.value_info.push(info);
                names.insert((from, key), name.clone());
                name
            }
        };
        graph.node[i].input[k] = name;
    }
}

/// Returns the attributes that input `k` of a node may be: a single one if the node has as many inputs from the module as its call has
/// attributes.
fn attributes_of_use<'a>(
    node: &NodeProto,
    k: usize,
    name: &str,
    own: &BTreeSet<String>,
    signature: &'a Signature,
) -> Vec<&'a (String, String)> {
    let attributes = signature.attributes_of(node);
    let inputs: Vec<usize> = (0..node.input.len()).filter(|&i| own.contains(&node.input[i])).collect();
    if let (true, Some(place)) = (inputs.len() == attributes.len(), inputs.iter().position(|&i| i == k)) {
        return vec![attributes[place]];
    }
    if let Some(&this) = attributes.iter().find(|(attribute, _)| attribute == name) {
        return vec![this];
    }
    // An attribute with its own initializer is another input.
    let open: Vec<_> = attributes.iter().copied().filter(|(attribute, _)| !own.contains(attribute)).collect();
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_string();
    let alike: Vec<_> = open.iter().copied().filter(|(attribute, _)| last(attribute) == last(name)).collect();
    if alike.is_empty() { open } else { alike }
}

/// Returns the attribute that a node without a call reads. A rewrite rule made the node, so it belongs to the module of the calls that read
/// its results.
fn attribute_by_scope<'a>(
    node: &NodeProto,
    name: &str,
    readers: &BTreeMap<&str, Vec<&NodeProto>>,
    signature: &'a Signature,
) -> Vec<&'a (String, String)> {
    if entry(&node.metadata_props, CALL).is_some() {
        return Vec::new();
    }
    let last = name.rsplit('.').next().unwrap_or_default();
    let next = node.output.iter().flat_map(|output| readers.get(&**output).into_iter().flatten());
    let scopes = next.filter_map(|reader| entry(&reader.metadata_props, SCOPES));
    // The innermost module that has such an attribute.
    let found =
        scopes.flat_map(|scopes| scopes.rsplit(['\'', '"'])).find_map(|scope| signature.attribute_in(scope, last));
    found.into_iter().collect()
}

/// Restores the biases that the newer exporter omitted because they are zeros.
fn biases_of_zeros(graph: &mut GraphProto, initializers: &mut Initializers, signature: &Signature) {
    for i in 0..graph.node.len() {
        let node = &graph.node[i];
        let has_bias = node.input.get(2).is_some_and(|input| !input.is_empty());
        let is_without = entry(&node.metadata_props, RULE).is_some_and(|rules| rules.contains(WITHOUT_BIAS));
        let weights = node.input.get(1).and_then(|name| initializers.places.get(name));
        let (false, true, Some(&weights)) = (has_bias, is_without, weights) else { continue };
        let (Some(name), Some(count)) = (bias(node, signature), bias_elements(node, &graph.initializer[weights]))
        else {
            continue;
        };
        let dims = vec![count];
        match initializers.places.get(&name) {
            Some(&place) if graph.initializer[place].dims != dims => continue,
            Some(_) => {}
            None if initializers.taken.contains(&name) => continue,
            None => {
                let data_type = graph.initializer[weights].data_type;
                let element_bytes = match OnnxType::try_from(graph.initializer[weights].data_type()) {
                    Ok(OnnxType::Float) => 4,
                    Ok(OnnxType::Double) => 8,
                    _ => 2,
                };
                let Some(bytes) = usize::try_from(count).ok().and_then(|count| count.checked_mul(element_bytes)) else {
                    continue;
                };
                let raw_data = Some(vec![0; bytes]);
                let zeros =
                    TensorProto { name: Some(name.clone()), data_type, dims, raw_data, ..TensorProto::default() };
                initializers.add(graph, zeros);
                let kind = StringStringEntryProto { key: Some(KIND.to_string()), value: Some("PARAMETER".to_string()) };
                let info = ValueInfoProto {
                    name: Some(name.clone()),
                    metadata_props: vec![kind],
                    ..ValueInfoProto::default()
                };
                graph.value_info.push(info);
            }
        }
        graph.node[i].input.resize(3, String::new());
        graph.node[i].input[2] = name;
    }
}

/// Returns the parameter that is the bias in the call from which a node was made.
fn bias(node: &NodeProto, signature: &Signature) -> Option<String> {
    let call = entry(&node.metadata_props, CALL)?;
    let (_, call) = call.split_once("target=torch.ops.aten.")?;
    let (target, rest) = call.split_once("](args = (")?;
    let place = match target.split('.').next()? {
        "linear" | "convolution" | "conv1d" | "conv2d" | "conv3d" => 2,
        "addmm" => 0,
        _ => return None,
    };
    let mut depth = 0_i32;
    let mut arguments = rest.split(|letter: char| {
        depth += i32::from("([{".contains(letter)) - i32::from(")]}".contains(letter));
        letter == ',' && depth == 0
    });
    // The last argument ends with the call's closing parenthesis.
    let argument = arguments.nth(place)?.split(')').next()?.trim();
    signature.attribute(argument).filter(|(_, kind)| kind == "PARAMETER").map(|(attribute, _)| attribute.clone())
}

/// Returns the number of elements of the bias of a product or a convolution.
fn bias_elements(node: &NodeProto, weights: &TensorProto) -> Option<i64> {
    let attribute = |name: &str, usual: i64| {
        node.attribute.iter().find(|attribute| attribute.name() == name).map_or(usual, |attribute| attribute.i())
    };
    match (node.op_type(), &*weights.dims) {
        ("Gemm", &[rows, columns]) => Some(if attribute("transB", 0) != 0 { rows } else { columns }),
        ("Conv", &[channels, ..]) => Some(channels),
        ("ConvTranspose", &[_, channels, ..]) => channels.checked_mul(attribute("group", 1)),
        _ => None,
    }
    .filter(|count| (1..=BIAS_ELEMENTS_MAX).contains(count))
}
