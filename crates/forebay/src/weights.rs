//! Weights that several plans use, and their places in memory that the plans share.
//!
//! A plan depends on sizes, but its weights do not. A session therefore lays out in blocks the weights that its plans have in common. A
//! plan that keeps everything on the device uses the blocks of the weights that are already laid out and gets one more block for the
//! others. A block is on the device as long as a plan there uses it.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use forebay_device::Device;
use forebay_memory::size::MemorySize;
use forebay_model::Graph;
use forebay_model::graph::ValueId;
use forebay_model::program::{BufferId, Program, Role};
use forebay_model::tensor::Contents;
use forebay_plan::SharedLayout;
use forebay_plan::liveness::DEVICE_ALIGNMENT_BYTES;
use forebay_runtime::{Executor, RuntimeError, shared_memory};

use crate::machine::LimitedDevice;

/// The weights of a model, and the blocks that contain them.
#[derive(Default)]
pub(crate) struct Weights {
    /// The number of nodes of the model.
    node_count: usize,
    /// The contents that all plans of the model have in common, by name.
    known: BTreeMap<String, Contents>,
    /// For those of them that were computed for a plan, what they were computed from.
    sources: BTreeMap<String, Contents>,
    /// The block of each weight and its first byte there, by name.
    places: BTreeMap<String, (u32, u64)>,
    blocks: Vec<Arc<Block>>,
}

/// Tensors that are adjacent in device memory.
#[derive(Debug)]
pub(crate) struct Block {
    /// The number of the block.
    pub(crate) number: u32,
    /// The number of bytes that it takes on the device.
    pub(crate) size_bytes: u64,
    /// The name, contents and first byte of each tensor.
    tensors: Vec<(String, Contents, u64)>,
}

/// The blocks that a plan may use.
pub(crate) struct Proposal {
    /// The places of the weights, for the plan.
    pub(crate) layout: SharedLayout,
    /// The blocks, in the order of the layout.
    pub(crate) blocks: Vec<Arc<Block>>,
}

impl Weights {
    /// Returns the weights of a graph.
    pub(crate) fn of(graph: &Graph) -> Weights {
        let known = graph.initializers.iter().map(|(&id, contents)| (graph.value(id).name.clone(), contents.clone()));
        Weights { node_count: graph.nodes.len(), known: known.collect(), ..Weights::default() }
    }

    /// Whether nothing of the model was computed before this graph.
    pub(crate) fn is_all_of(&self, graph: &Graph) -> bool {
        graph.nodes.len() == self.node_count
    }

    /// Lets plans have these initializers in common, each of which was computed in the same way from the given contents.
    pub(crate) fn share(&mut self, graph: &mut Graph, computed: &[(ValueId, Contents)]) {
        for (id, source) in computed {
            let name = &graph.value(*id).name;
            if !self.known.contains_key(name) {
                self.known.insert(name.clone(), graph.initializers[id].clone());
                self.sources.insert(name.clone(), source.clone());
            } else if self.sources.get(name).is_some_and(|known| known.are_those_of(source)) {
                graph.initializers.insert(*id, self.known[name].clone());
            }
        }
    }

    /// Returns places for the weights of a program; `None` if it has none, or if at most one plan is on the device at a time.
    pub(crate) fn propose(&self, program: &Program, machine: &LimitedDevice) -> Option<Proposal> {
        if parking_bytes(machine) == 0 {
            return None;
        }
        let mut uses: BTreeMap<BufferId, usize> = BTreeMap::new();
        program.persistent.iter().for_each(|named| *uses.entry(named.operand.buffer).or_default() += 1);
        let mut numbers: Vec<u32> = Vec::new();
        let (mut placed, mut new) = (Vec::new(), Vec::new());
        for named in &program.persistent {
            let buffer = named.operand.buffer;
            let is_whole = named.operand.offset_bytes == 0 && uses[&buffer] == 1;
            let contents = program.contents.get(&buffer);
            let is_weight =
                self.known.get(&named.name).zip(contents).is_some_and(|(known, own)| known.are_those_of(own));
            if program.buffer(buffer).role != Role::Constant || !is_whole || !is_weight {
                continue;
            }
            match self.places.get(&named.name) {
                Some(&(number, offset)) => {
                    numbers.extend((!numbers.contains(&number)).then_some(number));
                    placed.push((buffer, number, offset));
                }
                None => new.push((named.name.clone(), buffer, contents?.clone())),
            }
        }
        let mut blocks: Vec<Arc<Block>> = numbers.iter().map(|&number| self.blocks[number as usize].clone()).collect();
        if !new.is_empty() {
            let (mut end, mut tensors) = (0, Vec::with_capacity(new.len()));
            let number = self.blocks.len() as u32;
            for (name, buffer, contents) in new {
                tensors.push((name, contents, end));
                placed.push((buffer, number, end));
                end += program.buffer(buffer).size_bytes.next_multiple_of(DEVICE_ALIGNMENT_BYTES);
            }
            let size_bytes = end.next_multiple_of(machine.device.limits().tile_size_bytes);
            blocks.push(Arc::new(Block { number, size_bytes, tensors }));
        }
        let mut starts = BTreeMap::new();
        let mut layout = SharedLayout::default();
        for block in &blocks {
            starts.insert(block.number, layout.size_bytes());
            layout.blocks.push(block.size_bytes);
        }
        layout.offsets =
            placed.into_iter().map(|(buffer, number, offset)| (buffer, starts[&number] + offset)).collect();
        (!blocks.is_empty()).then_some(Proposal { layout, blocks })
    }

    /// Keeps the block that a plan was made with, if it is new.
    pub(crate) fn keep(&mut self, blocks: &[Arc<Block>]) {
        // At most one is new: the last.
        if let Some(block) = blocks.last().filter(|block| block.number as usize == self.blocks.len()) {
            for (name, _, offset) in &block.tensors {
                self.places.insert(name.clone(), (block.number, *offset));
            }
            self.blocks.push(block.clone());
        }
    }
}

/// The blocks that are on the device.
#[derive(Default)]
pub(crate) struct PlacedBlocks {
    by_number: BTreeMap<u32, Weak<Executor>>,
}

impl PlacedBlocks {
    /// Loads blocks onto the device, unless they are already there.
    ///
    /// # Errors
    /// Fails if the device reports an error or weights cannot be read.
    pub(crate) fn bring(
        &mut self,
        device: &Arc<dyn Device>,
        blocks: &[Arc<Block>],
    ) -> Result<Vec<Arc<Executor>>, RuntimeError> {
        let bring = |block: &Arc<Block>| {
            let place = self.by_number.entry(block.number).or_default();
            if let Some(there) = place.upgrade() {
                return Ok(there);
            }
            let tensors = block.tensors.iter().map(|(name, contents, offset)| (name.as_str(), contents, *offset));
            let new = Arc::new(shared_memory(device.clone(), block.size_bytes, tensors)?);
            *place = Arc::downgrade(&new);
            Ok(new)
        };
        blocks.iter().map(bring).collect()
    }
}

/// Returns the number of bytes that plans on the device may take together; 0 if there is only one at a time.
pub(crate) fn parking_bytes(machine: &LimitedDevice) -> u64 {
    let memory = &machine.options.memory;
    if machine.process_limit().is_some() || memory.host_memory.is_some() {
        return 0;
    }
    match memory.device_memory {
        Some(MemorySize::Bytes(bytes)) => bytes,
        Some(_) => 0,
        None => forebay_limits::share_bytes(forebay_limits::Use::Memory, machine.processes_here()).unwrap_or(0) / 2,
    }
}
