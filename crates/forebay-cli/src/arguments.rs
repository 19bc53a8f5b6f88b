//! All subcommands and flags. `--help` shows these texts.

// Help texts are plain text.
#![allow(rustdoc::broken_intra_doc_links)]

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use forebay::metrics::Metric;
use forebay::{DeviceName, MemorySize};

use crate::data_arguments::{DataArguments, LookArguments, data_set};
use crate::device_arguments::positive_count;
pub use crate::device_arguments::{DeviceArguments, MemoryKind, PolicyKind, UpdatesArguments, thread_count};
use crate::export_arguments::ExportArguments;
use crate::gradient_arguments::GradientArguments;
use crate::head_arguments::HeadArguments;
use crate::heap_arguments::{HeapArguments, byte_count};
use crate::lora_arguments::LoraArguments;
use crate::loss_arguments::{LossArguments, LossKind};
use crate::numbers::{below_one, not_negative, number_f64};
use crate::optimizer_arguments::{OptimizerArguments, OptimizerKind};
use crate::processes::{ProcessArguments, ShardKind};
use crate::rank_arguments::RankArguments;
use crate::record_arguments::RecordArguments;
use crate::report_arguments::{ReportArguments, TraceArguments};
use crate::run_arguments::RunArguments;
use crate::schedule_arguments::ScheduleArguments;

/// Train and run ONNX models whose tensors do not fit in device memory.
///
/// Set a limit: on a CPU, --memory-limit bounds the whole process, and what does not fit is recomputed or goes to --spill-dir. On a GPU,
/// --device-memory bounds its memory, and what does not fit is moved to host memory and back while other work continues. Results are
/// bit-identical to those of an unlimited run.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, max_term_width = 120)]
#[command(after_help = "Examples:
  forebay train unet3d.onnx --data brain/ --memory-limit 300MiB --steps 20
  forebay train unet3d.onnx --data brain/ --device vulkan --device-memory 192MiB
  forebay run model.onnx --input x=x.npy --output-dir results
  forebay export forebay-checkpoint --model unet3d.onnx --save trained.onnx
  forebay plan model.onnx --train --simulate-device 50%
  forebay data photos/ --show 16 --out sheet.png
  forebay devices
  forebay place buffers.csv --capacity 1MiB

`forebay COMMAND --help` explains a command's flags.")]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a model on arrays
    Run(Box<RunArguments>),
    /// Train a model on a data set, and save it as ONNX
    Train(Box<TrainArguments>),
    /// Write the model in a training checkpoint as ONNX
    Export(ExportArguments),
    /// Explain how a model would run: memory, barriers, what moves when and why, predicted time
    Plan(Box<PlanArguments>),
    /// Describe a data set, and draw samples of it
    Data(LookArguments),
    /// List the devices of this machine
    Devices(DevicesArguments),
    /// Assign offsets to buffers with known lifetimes, in as little memory as possible
    Place(PlaceArguments),
    /// Measure the eviction order of managed memory: which chunk is evicted after each of ten actions, and how long using chunks then takes
    Probe(ProbeArguments),
    /// Plan a traced training step for the machine that its trace describes, and report how far it is from ideal
    Replay(ReplayArguments),
}

/// Which parameters decay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DecayKind {
    /// All parameters
    All,
    /// Parameters with two or more dimensions, which excludes biases and the scales of normalizations
    Matrices,
}

/// The type in which products are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PrecisionKind {
    /// bfloat16
    Bf16,
    /// float16, with gradients scaled so that small ones are not 0
    F16,
}

/// How to train: shared by `train` and `plan --train`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Training")]
pub struct TrainingArguments {
    /// The loss to minimize
    #[arg(long, value_enum, default_value = "softmax-cross-entropy")]
    pub loss: LossKind,
    /// The output that the loss is computed from, if the model has several, or a value inside the model, such as the logits before its last
    /// softmax
    #[arg(long, value_name = "NAME")]
    pub loss_output: Option<String>,
    /// For --loss output: the model input that takes the labels [default: the first of labels, label, targets, target and y]
    #[arg(long, value_name = "NAME")]
    pub label_input: Option<String>,
    /// The class axis of the output that the loss is computed from (for cosine, the axis of the vectors' elements); negative axes count
    /// from the end [default: 1]
    #[arg(long, value_name = "N")]
    pub class_axis: Option<i64>,
    /// The label to ignore: positions with this label do not contribute to the loss
    #[arg(long, value_name = "N")]
    pub ignore_index: Option<i64>,
    /// Add the loss of another output: OUTPUT LOSS, optionally followed by weight=X, labels=NAME (the input or array with its labels; by
    /// default those of --loss, at the nearest positions if there are more) and flags of that loss without dashes, as in
    /// 'depth huber weight=0.5 labels=meters delta=0.2'; can be repeated
    #[arg(long, value_name = "WORDS")]
    pub also_loss: Vec<String>,
    /// The factor of --loss when other losses are added [default: 1]
    #[arg(long, value_name = "X", value_parser = not_negative, requires = "also_loss")]
    pub loss_weight: Option<f32>,
    /// The optimizer
    #[arg(long, value_enum, default_value = "sgd")]
    pub optimizer: OptimizerKind,
    /// Learning rate [default: 0.001 for adam, adamw, adam8bit, adamw8bit, radam and lamb, 0.002 for adamax and nadam, 1 for adadelta,
    /// 0.0001 for lion, 0.01 for others]
    #[arg(long, value_name = "X", value_parser = not_negative)]
    pub learning_rate: Option<f32>,
    /// Momentum of sgd and rmsprop [default: 0]
    #[arg(long, value_name = "X", value_parser = not_negative)]
    pub momentum: Option<f32>,
    /// Use Nesterov momentum (sgd only)
    #[arg(long, requires = "momentum")]
    pub nesterov: bool,
    /// First decay rate of adam, adamw, adam8bit, adamw8bit, adamax, nadam, radam, lion and lamb [default: 0.9]
    #[arg(long, value_name = "X", value_parser = below_one)]
    pub beta1: Option<f32>,
    /// Second decay rate of adam, adamw, adam8bit, adamw8bit, adamax, nadam, radam, lion and lamb, and decay rate of the mean squares of
    /// rmsprop and adadelta [default: 0.999; 0.99 for lion and rmsprop, 0.9 for adadelta]
    #[arg(long, value_name = "X", value_parser = below_one)]
    pub beta2: Option<f32>,
    /// Epsilon of adam, adamw, adam8bit, adamw8bit, adamax, nadam, radam, rmsprop, adagrad, adadelta and lamb; the smallest size of a
    /// parameter for adafactor [default: 1e-8; 1e-10 for adagrad, 1e-6 for adadelta and lamb, 1e-3 for adafactor]
    #[arg(long, value_name = "X", value_parser = not_negative)]
    pub epsilon: Option<f32>,
    /// Weight decay [default: 0; 0.01 for adamw, adamw8bit and lamb]
    #[arg(long, value_name = "X", value_parser = not_negative)]
    pub weight_decay: Option<f32>,
    /// Which parameters decay [default: all; matrices for adamw, adamw8bit, lion, lamb, adafactor and --decoupled]
    #[arg(long, value_enum)]
    pub decay: Option<DecayKind>,
    /// Flags of specific optimizers.
    #[command(flatten)]
    pub of_optimizer: OptimizerArguments,
    /// Flags of specific losses.
    #[command(flatten)]
    pub of_loss: LossArguments,
    /// Compute matrix products, convolutions and the operations that follow them in 16 bits; parameters, normalizations and the loss stay
    /// float32
    #[arg(long, value_enum)]
    pub precision: Option<PrecisionKind>,
    /// With --precision: keep nodes whose name, output or weight matches (* and ? are wildcards) in float32; can be repeated
    #[arg(long, value_name = "PATTERN", requires = "precision")]
    pub float32: Vec<String>,
    /// Do not train parameters whose names match (* and ? are wildcards); can be repeated
    #[arg(long, value_name = "PATTERN")]
    pub freeze: Vec<String>,
    /// Samples per step [default: as the model states]
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub batch_size: Option<u64>,
    /// A size that the model leaves open, by its symbol, or as INPUT[DIMENSION] if it has none; can be repeated
    #[arg(long, value_name = "NAME=N", value_parser = named_size)]
    pub size: Vec<(String, u64)>,
    /// Gradient processing.
    #[command(flatten)]
    pub gradients: GradientArguments,
    /// Head replacement.
    #[command(flatten)]
    pub head: HeadArguments,
    /// Adapters to train instead of weights.
    #[command(flatten)]
    pub adapters: LoraArguments,
}

/// What to do when the loss is NaN or a gradient is not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnNanKind {
    /// Stop with an error; parameters keep their values from before that step
    Stop,
    /// Continue, with a warning
    Continue,
    /// Continue without the update of that step, which is counted; also checks the gradients
    Skip,
}

/// What to do when the data is not what a checkpoint was trained on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DataChangedKind {
    /// Stop with an error
    Error,
    /// Continue, with a warning
    Ok,
}

/// `forebay train`.
#[derive(Args, Debug)]
#[command(after_help = "DATA is one of:

  an .npz archive, a .safetensors file, or a folder of .npy files
      arrays named like the model's inputs, the labels in `y` or `labels`, or in
      the only other one; the first axis counts samples. Integers are converted
      to the input's type; floating-point inputs are multiplied by
      --input-scale. A folder of .npz files: a sample in each
  a folder of NIfTI or NRRD volumes
      image and label files paired by name (t1_2mm.nii.gz and labels_2mm.nii.gz,
      case7_image.nii and case7_label.nii, or folders imagesTr and labelsTr),
      cropped or padded to the model's input, then normalized to mean 0 and
      deviation 1
  a folder of images
      PNG, JPEG, JPEG 2000, WebP, TIFF, BMP or PNM, one subfolder per class,
      resized to the model's input, pixels scaled to 0..1
  a folder of sounds
      WAV or FLAC, one subfolder per class, cut or padded with zeros to the
      model's input
  a table of images
      a .csv file with the columns path and label
  tar shards
      a .tar file or a folder of them, in WebDataset's layout: 17.jpg and
      17.cls, or 17.x.npy and 17.y.npy
  tables
      a Parquet file (.parquet), an Arrow file or stream (.arrow, .feather,
      .arrows, .ipc), or a folder of either: columns named like the inputs
      (numbers, lists, bytes of images) and y, labels or label; with
      --tokenizer, a column of text
  text
      a .txt or .jsonl file or a folder of them, with --tokenizer: sequences of
      tokens; the labels are the next tokens

DATA#0..1500 uses only those samples.

CONFIG.toml has one flag per line, without its dashes, and the model: `model = \"m.onnx\"`, `batch-size = 8`, \
`freeze = [\"a*\", \"b\"]`, `no-compare = true`. Flags on the command line take precedence. A run with --checkpoint or \
--best-checkpoint saves its flags there, in config.toml.

With a budget, a few steps are repeated after training, alternating with unlimited ones on a copy of the model, to show what \
the budget costs; --no-compare turns this off. The saved model is as it was at the end of training.

Examples:
  forebay train unet3d.onnx --data brain/ --device-memory 192MiB --steps 20 \\
      --save trained.onnx
  forebay train digits.onnx --data digits.npz#0..1500 --input-scale 0.0625 \\
      --batch-size 50 --epochs 10 --learning-rate 0.05 --momentum 0.9 \\
      --weight-decay 1e-4 --validate digits.npz#1500..1797
  forebay train gpt.onnx --data text.npz --class-axis -1 --optimizer adamw \\
      --steps 1000 --checkpoint run1
  forebay train gpt.onnx --data text.npz --class-axis -1 --optimizer adamw \\
      --steps 2000 --resume run1
  # Flags from a file; checks whether the run can start and how long it takes.
  forebay train run.toml --epochs 3 --dry-run")]
pub struct TrainArguments {
    /// The model, or a file with the flags of a run (see below)
    #[arg(value_name = "MODEL.onnx|CONFIG.toml")]
    pub model: PathBuf,
    /// The configuration of the run, as a file.
    #[arg(skip)]
    pub configuration: String,
    /// The training data (see below)
    #[arg(long, value_name = "DATA", value_parser = data_set())]
    pub data: String,
    /// The data to validate on after training (and during it: --validate-every): loss, accuracy, and Dice if labels have spatial axes
    #[arg(long, value_name = "DATA", value_parser = data_set(), group = "validation")]
    pub validate: Option<String>,
    /// Metrics to report on the validation data, besides the loss. For classes: accuracy, top5 (any number), f1, auc, iou, dice, perplexity
    /// and confusion; for decisions (bce): accuracy, f1, auc, iou and dice; for numbers: mae
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', value_parser = metric, requires = "validation")]
    pub metrics: Vec<Metric>,
    /// Multiply the values of floating-point inputs by X, also if they are stored as integers
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = number_f64)]
    pub input_scale: f64,
    /// The total number of training steps, including those before the checkpoint that --resume continues
    #[arg(long, value_name = "N", conflicts_with = "epochs", value_parser = positive_count)]
    pub steps: Option<u64>,
    /// The total number of passes over the training data [default: 1]
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub epochs: Option<u64>,
    /// Batch samples by this size, so that it is the same for all samples of a batch; a symbol of the model, or INPUT[DIMENSION]
    #[arg(long, value_name = "SIZE")]
    pub bucket_by: Option<String>,
    /// Pad the samples of a batch to the largest of them, rounded up to a multiple of N; with --bucket-by, sizes padded to the same size
    /// share a bucket; with --validate-by whole, also pad whole volumes
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub pad_to: Option<u64>,
    /// The label of padded positions [default: that of --ignore-index]
    #[arg(long, value_name = "LABEL", requires = "pad_to")]
    pub pad_label: Option<i64>,
    /// Reshuffle the data in each epoch; the seed is also used for dropout
    #[arg(long, value_name = "SEED")]
    pub shuffle: Option<u64>,
    /// What to do when the loss is not finite
    #[arg(long, value_enum, default_value = "stop")]
    pub on_nan: OnNanKind,
    /// Write the trained model
    #[arg(long, value_name = "FILE.onnx")]
    pub save: Option<PathBuf>,
    /// Write the trained model with the moving averages of its parameters
    #[arg(long, value_name = "FILE.onnx", requires = "ema")]
    pub save_ema: Option<PathBuf>,
    /// Write only the adapters into this folder, in PEFT's format: adapter_model.safetensors and adapter_config.json
    #[arg(long, value_name = "DIR", requires = "lora")]
    pub save_adapters: Option<PathBuf>,
    /// Write checkpoints into this folder: at the end, when Ctrl-C interrupts, and, for one process, when data that cannot be read or a
    /// loss that is not a number ends the run early (without this flag, an interrupted run leaves its checkpoint in ./forebay-checkpoint,
    /// or elsewhere if another run's checkpoint is there or that fails, and reports where); while training runs, no other run writes there
    #[arg(long, value_name = "DIR")]
    pub checkpoint: Option<PathBuf>,
    /// Also write a checkpoint after every N steps
    #[arg(long, value_name = "N", requires = "checkpoint", value_parser = positive_count)]
    pub checkpoint_every: Option<u64>,
    /// Also keep the last N checkpoints, each in a subfolder step-...
    #[arg(long, value_name = "N", requires = "checkpoint", value_parser = positive_count)]
    pub keep_checkpoints: Option<u64>,
    /// Resume from a checkpoint, bit for bit, even with another budget
    #[arg(long, value_name = "DIR")]
    pub resume: Option<PathBuf>,
    /// Whether --resume continues with data other than what the checkpoint was trained on
    #[arg(long, value_enum, value_name = "ANSWER", default_value = "error", requires = "resume")]
    pub data_changed: DataChangedKind,
    /// Check the model, the data, the plan and the disks, and report what training would take, without training or writing anything
    ///
    /// With --json, the keys of the report, and: ready (true; problems end with exit code 1 or 2), model (path, parameters,
    /// checkpoint_bytes), data (name, kind, samples, tensors, size_bytes, held_bytes), batch_size, steps_per_epoch, steps_to_train,
    /// predicted_step_seconds, predicted_epoch_seconds, predicted_seconds, and disk (what, folder, needed_bytes, free_bytes of each).
    #[arg(long)]
    pub dry_run: bool,
    /// Do not compare steps with the budget to steps without one
    #[arg(long)]
    pub no_compare: bool,
    /// Read the size for --device-memory (or for --simulate-device, if that flag is given) from this file, and again before every step
    #[arg(long, value_name = "FILE", conflicts_with_all = ["device_memory", "memory_limit"], help_heading = "Device")]
    pub device_memory_file: Option<PathBuf>,
    /// Plan the first step with the durations that --save-costs measured in another run
    #[arg(long, value_name = "FILE.json", help_heading = "Device")]
    pub costs: Option<PathBuf>,
    /// Write how long launches and copies took, for `plan --costs` and `train --costs`
    #[arg(long, value_name = "FILE.json", help_heading = "Device")]
    pub save_costs: Option<PathBuf>,
    /// How to train.
    #[command(flatten)]
    pub training: TrainingArguments,
    /// The learning-rate schedule.
    #[command(flatten)]
    pub schedule: ScheduleArguments,
    /// Monitoring of training.
    #[command(flatten)]
    pub records: RecordArguments,
    /// How samples are read.
    #[command(flatten)]
    pub reading: DataArguments,
    /// The machine.
    #[command(flatten)]
    pub device: DeviceArguments,
    /// The other processes.
    #[command(flatten)]
    pub processes: ProcessArguments,
    /// Where updates run.
    #[command(flatten)]
    pub updates: UpdatesArguments,
    /// What to shard across the processes: each keeps a slice of it instead of a full copy, which saves memory and does not change the
    /// results
    #[arg(long, value_enum, value_name = "WHAT", help_heading = "Processes")]
    pub shard: Option<ShardKind>,
    /// The report.
    #[command(flatten)]
    pub report: ReportArguments,
    /// The trace.
    #[command(flatten)]
    pub trace: TraceArguments,
}

impl TrainArguments {
    /// Describes the validation data; `None` without validation.
    pub fn validation(&self) -> Option<String> {
        let of_split = self.reading.split.map(|percent| format!("{} % of {}", 100.0 - percent, self.data));
        self.validate.clone().or(of_split)
    }
}

/// `forebay plan`.
#[derive(Args, Debug)]
#[command(after_help = "Nothing is run, and no device memory is allocated.

Examples:
  forebay plan model.onnx --batch-size 8
  forebay plan model.onnx --train --optimizer adam --memory-limit 1GiB
  forebay plan model.onnx --train --simulate-device 50% --commands | less
  # For a machine that you do not have.
  forebay plan model.onnx --train --machine laptop-8gb
  forebay plan model.onnx --train --machine h200 --ranks 64 --simulate
  # With the durations that `train --save-costs costs.json` measured.
  forebay plan model.onnx --train --costs costs.json

A machine is described in TOML; h200, laptop-8gb and cpu-2core-nvme come with Forebay, and their files serve as examples. The \
durations of kernels are then estimated from their operations and bytes. --json adds the explanation of the plan and `costs`, \
the durations from which the plan was made, in the format of --save-costs.")]
pub struct PlanArguments {
    /// The model
    #[arg(value_name = "MODEL.onnx")]
    pub model: PathBuf,
    /// Plan a training step instead of a run
    #[arg(long)]
    pub train: bool,
    /// List every copy of a step, with its reason
    #[arg(long)]
    pub moves: bool,
    /// List every command of a step
    #[arg(long)]
    pub commands: bool,
    /// Draw device memory over the launches of a step, with a rectangle for each stay of a buffer
    #[arg(long, value_name = "FILE.svg")]
    pub memory_svg: Option<PathBuf>,
    /// Plan for this machine, by name or description. Its memories are the budgets unless --device-memory and --host-memory are given, and
    /// what exceeds host memory goes to its disk
    #[arg(long, value_name = "NAME|FILE.toml", conflicts_with_all = ["device", "costs"], help_heading = "Device")]
    pub machine: Option<String>,
    /// Where updates run.
    #[command(flatten)]
    pub updates: UpdatesArguments,
    /// The processes.
    #[command(flatten)]
    pub ranks: RankArguments,
    /// Plan with the durations that `train --save-costs` measured
    #[arg(long, value_name = "FILE.json", help_heading = "Device")]
    pub costs: Option<PathBuf>,
    /// How to train.
    #[command(flatten)]
    pub training: TrainingArguments,
    /// The machine.
    #[command(flatten)]
    pub device: DeviceArguments,
    /// The report.
    #[command(flatten)]
    pub report: ReportArguments,
}

/// `forebay probe`.
#[derive(Args, Debug)]
#[command(
    after_help = "The experiment comes from \"Consideration on Application of CUDA Unified Memory to Deep Learning\" \
(2018): fill the device with chunks, perform an action, create one more chunk, see which chunk was evicted for it, and use the \
first three chunks, each in a separate run. Action 10 is performed both as the paper's text describes it and as its program \
performs it.

Examples:
  forebay probe
  forebay probe --policy touch --chunk-size 64MiB --svg touch.svg"
)]
pub struct ProbeArguments {
    /// The eviction policy
    #[arg(long, value_enum, default_value = "driver")]
    pub policy: PolicyKind,
    /// Size of a chunk
    #[arg(long, value_name = "SIZE", default_value = "8MiB", value_parser = byte_count)]
    pub chunk_size: u64,
    /// Chunks that fill the device
    #[arg(long, value_name = "N", default_value_t = 14, value_parser = clap::value_parser!(u64).range(5..=1000))]
    pub chunks: u64,
    /// The device; `forebay devices` lists them
    #[arg(long, value_name = "NAME", default_value_t)]
    pub device: DeviceName,
    /// Threads for kernels and copies together [default: all]
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub threads: Option<u64>,
    /// How device memory is allocated.
    #[command(flatten)]
    pub heaps: HeapArguments,
    /// Print a single JSON object to standard output, and nothing else
    ///
    /// Keys: device, policy, chunk_bytes, chunks, as_measured (of all actions), actions (each with action, description,
    /// evicted_chunks, measured_evicted_chunks, as_measured, overcommit_seconds, and touches with chunk, resident, seconds).
    #[arg(long)]
    pub json: bool,
    /// Plot the times
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
}

/// The policy that decides what moves in a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PolicyOfReplay {
    /// The planner, which decides what moves and when for the whole step ahead of time
    Planned,
    /// Demand paging: nothing moves before a kernel needs it, and the least recently used data is evicted first
    Lru,
}

impl PolicyOfReplay {
    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            PolicyOfReplay::Planned => "planned",
            PolicyOfReplay::Lru => "lru",
        }
    }
}

/// `forebay replay`.
#[derive(Args, Debug)]
#[command(after_help = "TRACE contains JSON lines, plain or compressed with gzip: a header with device_memory_bytes, \
host_memory_bytes, link_bytes_per_s and ssd_bytes_per_s; a line for each tensor (tensor, size_bytes, persistent), numbered \
from 0; a line for each kernel in the order in which they run (kernel, name, duration_ns, reads, writes, workspace_bytes).

The step repeats forever: it ends with the same bytes in the same memories as at its start. A kernel starts when everything \
that it uses is on the device. The link works in both directions at once; traffic to the SSD crosses it too. Every schedule \
is checked by a verifier that knows only the trace and the schedule.

The schedule file contains one JSON object: step_ns; resident (tensor, offset_bytes, size_bytes, place), what the step starts \
and ends with; launches (kernel, start_ns, recomputation); transfers (tensor, offset_bytes, size_bytes, direction: out or in, \
place: host or ssd, start_ns, end_ns); drops (tensor, offset_bytes, size_bytes, place, at_ns), when a piece leaves a memory.

Examples:
  forebay replay bert.jsonl.gz
  forebay replay bert.jsonl.gz --device-memory 24GiB --schedule bert.json
  forebay replay bert.jsonl.gz --machine h200 --device-memory 50%
  forebay replay bert.jsonl.gz --policy lru --json")]
pub struct ReplayArguments {
    /// The trace (see below)
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,
    /// The policy that decides what moves
    #[arg(long, value_enum, default_value = "planned")]
    pub policy: PolicyOfReplay,
    /// Replay with the memories, link and disk of this machine instead of the trace's; kernels still take the times in the trace
    #[arg(long, value_name = "NAME|FILE.toml")]
    pub machine: Option<String>,
    /// Device memory: bytes, a size such as 24GiB, or a share such as 50% of the device memory that the trace (or --machine) states; with
    /// other commands, a share is of what the model needs [default: as stated there]
    #[arg(long, value_name = "SIZE")]
    pub device_memory: Option<MemorySize>,
    /// Write the schedule (see below)
    #[arg(long, value_name = "FILE.json")]
    pub schedule: Option<PathBuf>,
    /// Print a single JSON object to standard output, and nothing else
    ///
    /// Keys: trace, policy, device_memory_bytes; ideal_ns (everything fits), lower_bound_ns (no schedule is faster), step_ns (the
    /// policy's), time_over_ideal, bound_over_ideal, lru_ns and lru_over_ideal (demand paging; null where it does not repeat
    /// itself); live_peak_bytes (needed at once), device_peak_bytes, host_peak_bytes, ssd_peak_bytes; host_out_bytes,
    /// host_in_bytes, ssd_out_bytes, ssd_in_bytes (each step); recomputed_kernels, recomputed_ns; late_prefetches (kernels that
    /// wait for a transfer to the device), wait_ns (what all kernels wait); planning_seconds.
    #[arg(long)]
    pub json: bool,
}

/// `forebay devices`.
#[derive(Args, Debug)]
#[command(
    after_help = "The column `matrices` lists the 16-bit types for which a GPU has matrix instructions (cooperative \
matrices); products and convolutions of these types use them."
)]
pub struct DevicesArguments {
    /// Print a single JSON object to standard output, and nothing else
    ///
    /// Keys: devices, each with name, description and usable. A usable device also has memory_bytes, lanes (the number of threads or
    /// compute units that work in parallel), tiled (whether heaps can be mapped tile by tile), unified (whether its memory is the
    /// host's), tile_size_bytes, heap_size_max_bytes, offset_alignment_bytes, tensor_elements_max, copy_streams (whether copies run
    /// alongside kernels), copies_use_lanes (whether copies occupy lanes) and cooperative_matrices (the types in the column `matrices`);
    /// any other device has reason (why it cannot be used).
    #[arg(long)]
    pub json: bool,
}

/// `forebay place`.
#[derive(Args, Debug)]
#[command(after_help = "FILE.csv has a header and one buffer per line, like MiniMalloc's files:

  id,lower,upper,size
  b1,0,3,4
  b2,3,9,4

A buffer is live from `lower` up to but not including `upper`; `size` is in bytes. Columns can be in any order. `alignment`, \
`offset` (a fixed one) and `gaps` (3-5 or 3-5@0:16) are optional; `end`, instead of `upper`, is the last time at which a buffer \
is live.

Exit code 1: the buffers do not fit into the capacity, or no placement that fits was found.

Examples:
  forebay place buffers.csv
  forebay place buffers.csv --capacity 1MiB --output placed.csv")]
pub struct PlaceArguments {
    /// The buffers (see below)
    #[arg(value_name = "FILE.csv")]
    pub file: PathBuf,
    /// The maximum memory: bytes, or a size such as 1MiB [default: as little as possible]
    #[arg(long, value_name = "SIZE")]
    pub capacity: Option<MemorySize>,
    /// Write the buffers with an additional column `offset`
    #[arg(long, value_name = "FILE.csv")]
    pub output: Option<PathBuf>,
    /// Print a single JSON object to standard output, and nothing else
    ///
    /// Keys: offsets (id and offset of each buffer), height, capacity (null without one), lower_bound (no placement is lower), all in
    /// bytes; seconds.
    #[arg(long)]
    pub json: bool,
}

fn metric(text: &str) -> Result<Metric, String> {
    text.parse::<Metric>().map_err(|error| error.to_string())
}

/// Parses NAME=N.
fn named_size(text: &str) -> Result<(String, u64), String> {
    let (name, size) = text.rsplit_once('=').filter(|(name, _)| !name.is_empty()).ok_or("expected NAME=N")?;
    Ok((name.to_owned(), positive_count(size)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    /// Terminals have 80 columns and more. clap wraps each line by itself, so a paragraph that was wrapped here would be wrapped twice.
    #[test]
    fn help_texts_are_wrapped_once() {
        let command = Arguments::command();
        for command in command.get_subcommands().chain([&command]) {
            let name = command.get_name();
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let is_paragraph = |line: &str| !line.is_empty() && !line.starts_with(' ');
            for line in lines.iter().filter(|line| !is_paragraph(line)) {
                assert!(line.chars().count() <= 80, "{name}: {line}");
            }
            for pair in lines.windows(2) {
                assert!(!(is_paragraph(pair[0]) && is_paragraph(pair[1])), "{name}: {}", pair[1]);
            }
        }
    }

    #[test]
    fn help_names_the_optimizers_of_a_default() {
        let command = Arguments::command();
        let train = command.find_subcommand("train").expect("a subcommand");
        let help = |flag: &str| {
            let found = train.get_arguments().find(|argument| argument.get_long() == Some(flag));
            found.and_then(|argument| argument.get_help()).expect("a help text").to_string()
        };
        for (flag, words) in [
            ("learning-rate", "adam8bit, adamw8bit"),
            ("beta1", "adam8bit, adamw8bit"),
            ("beta2", "adam8bit, adamw8bit"),
            ("epsilon", "adam8bit, adamw8bit"),
            ("weight-decay", "adamw8bit"),
            ("decay", "adamw8bit"),
        ] {
            assert!(help(flag).contains(words), "--{flag}: {}", help(flag));
        }
    }
}
