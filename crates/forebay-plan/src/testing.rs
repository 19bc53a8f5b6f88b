//! Small programs for the tests of this crate.

use std::sync::Arc;

use forebay_base::{DataType, Kernel, TensorDesc};
use forebay_model::graph::TensorType;
use forebay_model::program::{Buffer, BufferId, NamedOperand, Operand, Program, ProgramLaunch, Role};
use forebay_model::tensor::{Contents, FileRange, SourceFile};
pub(crate) use forebay_testing::Random;

/// Builds programs with packed float32 buffers, launch by launch.
#[derive(Default)]
pub(crate) struct ProgramBuilder {
    program: Program,
}

impl ProgramBuilder {
    pub fn buffer(&mut self, name: &str, size_bytes: u64, role: Role) -> BufferId {
        self.program.buffers.push(Buffer { name: name.to_string(), size_bytes, role });
        BufferId(self.program.buffers.len() as u32 - 1)
    }

    pub fn temporary(&mut self, name: &str, size_bytes: u64) -> BufferId {
        self.buffer(name, size_bytes, Role::Temporary)
    }

    pub fn input(&mut self, name: &str, size_bytes: u64) -> BufferId {
        let id = self.buffer(name, size_bytes, Role::Input);
        let named = self.named(id);
        self.program.inputs.push(named);
        id
    }

    pub fn persistent(&mut self, name: &str, size_bytes: u64, role: Role) -> BufferId {
        let id = self.buffer(name, size_bytes, role);
        let named = self.named(id);
        self.program.persistent.push(named);
        id
    }

    pub fn operand(&self, buffer: BufferId) -> Operand {
        let count = self.program.buffer(buffer).size_bytes / 4;
        let desc = TensorDesc::packed(DataType::Float32, &[count]).expect("a small tensor");
        Operand { buffer, offset_bytes: 0, desc }
    }

    fn named(&self, buffer: BufferId) -> NamedOperand {
        let operand = self.operand(buffer);
        NamedOperand { name: self.program.buffer(buffer).name.clone(), shape: operand.desc.sizes().to_vec(), operand }
    }

    pub fn launch(&mut self, kernel: Kernel, reads: &[BufferId], writes: &[BufferId]) {
        let name = format!("launch{}", self.program.launches.len());
        let [reads, writes] =
            [reads, writes].map(|buffers| buffers.iter().map(|&buffer| self.operand(buffer)).collect());
        self.program.launches.push(ProgramLaunch::new(name, kernel, reads, writes));
    }

    /// Makes all further launches part of the update phase.
    pub fn start_updates(&mut self) {
        self.program.update_start = self.program.launches.len();
    }

    pub fn finish(mut self, outputs: &[BufferId]) -> Program {
        if self.program.update_start == 0 {
            self.program.update_start = self.program.launches.len();
        }
        self.program.outputs = outputs.iter().map(|&buffer| self.named(buffer)).collect();
        self.program
    }
}

/// Returns the limits of a device with tiles of 4 KiB.
pub(crate) fn limits() -> forebay_base::Limits {
    forebay_base::Limits {
        name: "test".to_string(),
        tiled: true,
        unified: false,
        tile_size_bytes: 4096,
        heap_size_max_bytes: 1 << 20,
        memory_bytes: 1 << 40,
        offset_alignment_bytes: 16,
        tensor_elements_max: u64::MAX,
        copy_streams: true,
        in_process: false,
        copies_use_workers: false,
        link_bytes_per_second: None,
        applies_functions: false,
        workers: 2,
    }
}

/// Returns a training-like program with random sizes, skips and constants.
pub(crate) fn random_training_program(random: &mut Random, depth: usize) -> Program {
    let size_bytes = (1 + random.below(40)) * 64 * 1024;
    let layers: Vec<(Role, usize)> = (0..depth)
        .map(|layer| (if random.once_in(4) { Role::Constant } else { Role::Parameter }, random.index(layer + 1)))
        .collect();
    training_program(size_bytes, &layers)
}

/// Returns the same program with its constants in a file that nothing reads.
pub(crate) fn with_constants_in_file(mut program: Program) -> Program {
    let path = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
    let metadata = std::fs::metadata(path).expect("this crate has a manifest");
    let file = Arc::new(SourceFile::closed(path, &metadata, Arc::default()));
    let is_constant = |named: &&NamedOperand| program.buffer(named.operand.buffer).role == Role::Constant;
    let in_file = |named: &NamedOperand| {
        let ty = TensorType::new(DataType::Float32, &named.shape);
        let bytes = 0..program.buffer(named.operand.buffer).size_bytes;
        let contents = Contents::stored(&named.name, ty, FileRange { file: file.clone(), bytes });
        (named.operand.buffer, contents.expect("a constant fills its buffer"))
    };
    program.contents = program.persistent.iter().filter(is_constant).map(in_file).collect();
    program
}

/// Returns a training-like program: a forward chain with skips, a backward chain that uses the forward values, and updates at the end. Each
/// layer gives the role of its weight, and the earlier layer whose result it reads (0: the input).
pub(crate) fn training_program(size_bytes: u64, layers: &[(Role, usize)]) -> Program {
    use forebay_base::kernel::Activation;
    use forebay_base::kernel::{BinaryOp, UnaryOp};
    let mut build = ProgramBuilder::default();
    let add = Kernel::Binary { op: BinaryOp::Add, activation: Activation::None };
    let mut values = vec![build.input("x", size_bytes)];
    let mut parameters = Vec::new();
    for (layer, &(role, skip)) in layers.iter().enumerate() {
        let parameter = build.persistent(&format!("w{layer}"), size_bytes, role);
        let value = build.temporary(&format!("v{layer}"), size_bytes);
        build.launch(add.clone(), &[values[skip], parameter], &[value]);
        let activated = build.temporary(&format!("a{layer}"), size_bytes);
        build.launch(Kernel::Unary(UnaryOp::Relu), &[value], &[activated]);
        parameters.push((parameter, role, value, activated));
        values.push(activated);
    }
    let output = values[layers.len()];
    let mut gradient = build.temporary("d", size_bytes);
    let loss = build.temporary("loss", 64);
    build.launch(Kernel::MeanSquaredError, &[output, values[0]], &[loss]);
    build.launch(Kernel::MeanSquaredErrorGradient, &[loss, output, values[0]], &[gradient]);
    let hyperparameters = build.input("hyperparameters", 64);
    let mut updates = Vec::new();
    for (layer, &(parameter, role, value, activated)) in parameters.iter().enumerate().rev() {
        let before = build.temporary(&format!("db{layer}"), size_bytes);
        build.launch(Kernel::UnaryGradient(UnaryOp::Relu), &[gradient, activated], &[before]);
        let by_parameter = build.temporary(&format!("dw{layer}"), size_bytes);
        build.launch(add.clone(), &[before, value], &[by_parameter]);
        let next = build.temporary(&format!("dx{layer}"), size_bytes);
        build.launch(add.clone(), &[before, parameter], &[next]);
        gradient = next;
        if role == Role::Parameter {
            updates.push((layer, parameter, by_parameter));
        }
    }
    build.start_updates();
    for (layer, parameter, by_parameter) in updates {
        let velocity = build.persistent(&format!("w{layer}.velocity"), size_bytes, Role::State);
        let sgd = Kernel::Sgd { nesterov: false, decays: true };
        build.launch(sgd, &[parameter, by_parameter, velocity, hyperparameters], &[parameter, velocity]);
    }
    build.finish(&[loss])
}
