//! The inputs and attributes of the operators of ONNX's default domain in the newest operator set, for eager operations.

use super::NEWEST_OPSET;
use crate::error::ModelError;
use crate::graph::Operation;
use crate::operator::NodeView;

/// The number of inputs of an operator that takes any number.
const MANY: usize = usize::MAX;

/// The operators, in alphabetical order, each with the most inputs that it can have and the names of its attributes.
const SIGNATURES: &[(&str, usize, &str)] = &[
    ("Abs", 1, ""),
    ("Acos", 1, ""),
    ("Acosh", 1, ""),
    ("Add", 2, ""),
    ("AffineGrid", 2, "align_corners"),
    ("And", 2, ""),
    ("ArgMax", 1, "axis keepdims select_last_index"),
    ("ArgMin", 1, "axis keepdims select_last_index"),
    ("Asin", 1, ""),
    ("Asinh", 1, ""),
    ("Atan", 1, ""),
    ("Atanh", 1, ""),
    (
        "Attention",
        7,
        "is_causal kv_num_heads left_window_size q_num_heads \
         qk_matmul_output_mode right_window_size scale softcap softmax_precision",
    ),
    ("AveragePool", 1, "auto_pad ceil_mode count_include_pad dilations kernel_shape pads strides"),
    ("BatchNormalization", 5, "epsilon momentum training_mode"),
    ("Bernoulli", 1, "dtype seed"),
    ("BitCast", 1, "to"),
    ("BitShift", 2, "direction"),
    ("BitwiseAnd", 2, ""),
    ("BitwiseNot", 1, ""),
    ("BitwiseOr", 2, ""),
    ("BitwiseXor", 2, ""),
    ("BlackmanWindow", 1, "output_datatype periodic"),
    ("Cast", 1, "round_mode saturate to"),
    ("CastLike", 2, "round_mode saturate"),
    ("CausalConvWithState", 4, "activation"),
    ("Ceil", 1, ""),
    ("Celu", 1, "alpha"),
    ("CenterCropPad", 2, "axes"),
    ("Clip", 3, ""),
    ("Col2Im", 3, "dilations pads strides"),
    ("Compress", 2, "axis"),
    ("Concat", MANY, "axis"),
    (
        "Constant",
        0,
        "sparse_value value value_float value_floats \
         value_int value_ints value_string value_strings",
    ),
    ("ConstantOfShape", 1, "value"),
    ("Conv", 3, "auto_pad dilations group kernel_shape pads strides"),
    ("ConvInteger", 4, "auto_pad dilations group kernel_shape pads strides"),
    ("ConvTranspose", 3, "auto_pad dilations group kernel_shape output_padding output_shape pads strides"),
    ("Cos", 1, ""),
    ("Cosh", 1, ""),
    ("CumProd", 2, "exclusive reverse"),
    ("CumSum", 2, "exclusive reverse"),
    ("DFT", 3, "inverse onesided"),
    ("DeformConv", 5, "dilations group kernel_shape offset_group pads strides"),
    ("DepthToSpace", 1, "blocksize mode"),
    ("DequantizeLinear", 3, "axis block_size output_dtype"),
    ("Det", 1, ""),
    ("Div", 2, ""),
    ("Dropout", 3, "seed"),
    ("DynamicQuantizeLinear", 1, ""),
    ("Einsum", MANY, "equation"),
    ("Elu", 1, "alpha"),
    ("Equal", 2, ""),
    ("Erf", 1, ""),
    ("Exp", 1, ""),
    ("Expand", 2, ""),
    ("EyeLike", 1, "dtype k"),
    ("Flatten", 1, "axis"),
    ("Floor", 1, ""),
    (
        "GRU",
        6,
        "activation_alpha activation_beta activations clip \
         direction hidden_size layout linear_before_reset",
    ),
    ("Gather", 2, "axis"),
    ("GatherElements", 2, "axis"),
    ("GatherND", 2, "batch_dims"),
    ("Gelu", 1, "approximate"),
    ("Gemm", 3, "alpha beta transA transB"),
    ("GlobalAveragePool", 1, ""),
    ("GlobalLpPool", 1, "p"),
    ("GlobalMaxPool", 1, ""),
    ("Greater", 2, ""),
    ("GreaterOrEqual", 2, ""),
    ("GridSample", 2, "align_corners mode padding_mode"),
    ("GroupNormalization", 3, "epsilon num_groups stash_type"),
    ("HammingWindow", 1, "output_datatype periodic"),
    ("HannWindow", 1, "output_datatype periodic"),
    ("HardSigmoid", 1, "alpha beta"),
    ("HardSwish", 1, ""),
    ("Hardmax", 1, "axis"),
    ("Identity", 1, ""),
    ("ImageDecoder", 1, "pixel_format"),
    ("InstanceNormalization", 3, "epsilon"),
    ("IsInf", 1, "detect_negative detect_positive"),
    ("IsNaN", 1, ""),
    ("LRN", 1, "alpha beta bias size"),
    (
        "LSTM",
        8,
        "activation_alpha activation_beta activations clip \
         direction hidden_size input_forget layout",
    ),
    ("LayerNormalization", 3, "axis epsilon stash_type"),
    ("LeakyRelu", 1, "alpha"),
    ("Less", 2, ""),
    ("LessOrEqual", 2, ""),
    ("LinearAttention", 6, "chunk_size kv_num_heads q_num_heads scale update_rule"),
    ("Log", 1, ""),
    ("LogSoftmax", 1, "axis"),
    ("LpNormalization", 1, "axis p"),
    ("LpPool", 1, "auto_pad ceil_mode dilations kernel_shape p pads strides"),
    ("MatMul", 2, ""),
    ("MatMulInteger", 4, ""),
    ("Max", MANY, ""),
    ("MaxPool", 1, "auto_pad ceil_mode dilations kernel_shape pads storage_order strides"),
    ("MaxRoiPool", 2, "pooled_shape spatial_scale"),
    ("MaxUnpool", 3, "kernel_shape pads strides"),
    ("Mean", MANY, ""),
    ("MeanVarianceNormalization", 1, "axes"),
    ("MelWeightMatrix", 5, "output_datatype"),
    ("Min", MANY, ""),
    ("Mish", 1, ""),
    ("Mod", 2, "fmod"),
    ("Mul", 2, ""),
    ("Multinomial", 1, "dtype sample_size seed"),
    ("Neg", 1, ""),
    ("NegativeLogLikelihoodLoss", 3, "ignore_index reduction"),
    ("NonMaxSuppression", 5, "center_point_box"),
    ("NonZero", 1, ""),
    ("Not", 1, ""),
    ("OneHot", 3, "axis"),
    ("Or", 2, ""),
    ("PRelu", 2, ""),
    ("Pad", 4, "mode"),
    ("Pow", 2, ""),
    ("QLinearConv", 9, "auto_pad dilations group kernel_shape pads strides"),
    ("QLinearMatMul", 8, ""),
    ("QuantizeLinear", 3, "axis block_size output_dtype precision saturate"),
    ("RMSNormalization", 2, "axis epsilon stash_type"),
    ("RNN", 6, "activation_alpha activation_beta activations clip direction hidden_size layout"),
    ("RandomNormal", 0, "dtype mean scale seed shape"),
    ("RandomNormalLike", 1, "dtype mean scale seed"),
    ("RandomUniform", 0, "dtype high low seed shape"),
    ("RandomUniformLike", 1, "dtype high low seed"),
    ("Range", 3, "stash_type"),
    ("Reciprocal", 1, ""),
    ("ReduceL1", 2, "keepdims noop_with_empty_axes"),
    ("ReduceL2", 2, "keepdims noop_with_empty_axes"),
    ("ReduceLogSum", 2, "keepdims noop_with_empty_axes"),
    ("ReduceLogSumExp", 2, "keepdims noop_with_empty_axes"),
    ("ReduceMax", 2, "keepdims noop_with_empty_axes"),
    ("ReduceMean", 2, "keepdims noop_with_empty_axes"),
    ("ReduceMin", 2, "keepdims noop_with_empty_axes"),
    ("ReduceProd", 2, "keepdims noop_with_empty_axes"),
    ("ReduceSum", 2, "keepdims noop_with_empty_axes"),
    ("ReduceSumSquare", 2, "keepdims noop_with_empty_axes"),
    ("Relu", 1, ""),
    ("Reshape", 2, "allowzero"),
    (
        "Resize",
        4,
        "antialias axes coordinate_transformation_mode cubic_coeff_a \
         exclude_outside extrapolation_value keep_aspect_ratio_policy mode nearest_mode",
    ),
    ("ReverseSequence", 2, "batch_axis time_axis"),
    (
        "RoiAlign",
        3,
        "coordinate_transformation_mode mode output_height \
         output_width sampling_ratio spatial_scale",
    ),
    ("RotaryEmbedding", 4, "interleaved num_heads rotary_embedding_dim"),
    ("Round", 1, ""),
    ("STFT", 4, "onesided"),
    ("Scatter", 3, "axis"),
    ("ScatterElements", 3, "axis reduction"),
    ("ScatterND", 3, "reduction"),
    ("Selu", 1, "alpha gamma"),
    ("Shape", 1, "end start"),
    ("Shrink", 1, "bias lambd"),
    ("Sigmoid", 1, ""),
    ("Sign", 1, ""),
    // Not of ONNX, but onnxruntime writes it into the default domain.
    ("SimplifiedLayerNormalization", 2, "axis epsilon stash_type"),
    ("Sin", 1, ""),
    ("Sinh", 1, ""),
    ("Size", 1, ""),
    ("Slice", 5, ""),
    ("Softmax", 1, "axis"),
    ("SoftmaxCrossEntropyLoss", 3, "ignore_index reduction"),
    ("Softplus", 1, ""),
    ("Softsign", 1, ""),
    ("SpaceToDepth", 1, "blocksize mode"),
    ("Split", 2, "axis num_outputs"),
    ("Sqrt", 1, ""),
    ("Squeeze", 2, ""),
    ("Sub", 2, ""),
    ("Sum", MANY, ""),
    ("SwiGLU", 2, "alpha"),
    ("Swish", 1, "alpha"),
    ("Tan", 1, ""),
    ("Tanh", 1, ""),
    ("TensorScatter", 3, "axis mode"),
    (
        "TfIdfVectorizer",
        1,
        "max_gram_length max_skip_count min_gram_length mode \
         ngram_counts ngram_indexes pool_int64s pool_strings weights",
    ),
    ("ThresholdedRelu", 1, "alpha"),
    ("Tile", 2, ""),
    ("TopK", 2, "axis largest sorted"),
    ("Transpose", 1, "perm"),
    ("Trilu", 2, "upper"),
    ("Unique", 1, "axis sorted"),
    ("Unsqueeze", 2, ""),
    ("Upsample", 2, "mode"),
    ("Where", 3, ""),
    ("Xor", 2, ""),
];

/// Returns the most inputs and the attributes of an operator.
pub(super) fn of(op_type: &str) -> Option<(usize, &'static str)> {
    let row = SIGNATURES.binary_search_by_key(&op_type, |(known, ..)| known).ok()?;
    let (_, inputs_max, attributes) = SIGNATURES[row];
    Some((inputs_max, attributes))
}

/// Rejects inputs and attributes that an operator of the default domain does not have in the newest operator set. In files they are
/// ignored, because exporters leave those of other operator sets behind.
///
/// # Errors
/// Names the first such attribute, or the most inputs that the operator can have.
pub fn check(view: &NodeView) -> Result<(), ModelError> {
    let Operation::Onnx { domain, op_type, attributes, .. } = &view.node.operation else { return Ok(()) };
    let Some((inputs_max, known)) = of(op_type).filter(|_| domain.is_empty()) else { return Ok(()) };
    if let Some(unknown) = attributes.keys().find(|name| !known.split(' ').any(|known| known == name.as_str())) {
        let known =
            if known.is_empty() { "it has none".to_string() } else { format!("it has {}", known.replace(' ', ", ")) };
        return Err(view.error(format!("there is no attribute '{unknown}' in operator set {NEWEST_OPSET}; {known}")));
    }
    let given = view.node.inputs.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    if given > inputs_max {
        return Err(view.error(format!("{given} inputs are given, but it takes at most {inputs_max}")));
    }
    Ok(())
}
