//! Inputs and outputs of sessions stay in the caller's memory.

use std::path::Path;
use std::sync::{Arc, Mutex};

use forebay::{DataType, MemoryLimit, Model, Session, SessionOptions, Tensor};
use forebay_base::MemoryId;
use forebay_device::host::{HostDevice, HostOptions};
use forebay_device::{Device, Loan, forward};

/// A host device that records its loans.
struct Watching {
    inner: HostDevice,
    lent: Mutex<Vec<Lent>>,
}

/// A loan: its address, its length, and whether it can be written.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Lent {
    address: usize,
    bytes: usize,
    to_write: bool,
}

impl Device for Watching {
    forward! {
        inner: limits workspace_bytes host_workspace_bytes check_room create_heap destroy_heap create_reservation create_placed
        create_host_block create_released_host_block release_host allocate_late fill_host create_spill create_read_only takes_loans create_loan give_back destroy_memory
        create_stream destroy_stream create_event destroy_event submit synchronize recover wait_event query_event event_time write_host
        read_host join take_index_fault usage set_trace take_trace
    }

    fn lend(&self, memory: MemoryId, loan: Loan) -> Result<(), Loan> {
        let (bytes, to_write): (&[u8], bool) = match &loan {
            Loan::ToRead(owner) => ((**owner).as_ref(), false),
            Loan::ToWrite(bytes) => (bytes, true),
        };
        let lent = Lent { address: bytes.as_ptr().addr(), bytes: bytes.len(), to_write };
        self.inner.lend(memory, loan)?;
        self.lent.lock().expect("no one failed").push(lent);
        Ok(())
    }
}

fn digits() -> Model {
    Model::from_file(Path::new("../../examples/digits/model.onnx")).expect("the model of the repository")
}

fn pixels(count: u64) -> Vec<u8> {
    (0..64 * count).flat_map(|pixel| ((pixel * 7 % 17) as f32 / 16.0).to_le_bytes()).collect()
}

/// The bytes of a vector from an offset on.
struct From(Vec<u8>, usize);

impl AsRef<[u8]> for From {
    fn as_ref(&self) -> &[u8] {
        &self.0[self.1..]
    }
}

fn run(session: &mut Session, x: Tensor) -> Tensor {
    session.run([("x".to_string(), x)].into()).expect("the model runs").remove("logits").expect("its output")
}

/// The same holds if free memory limits the process and if nothing does.
#[test]
fn inputs_are_read_and_outputs_written_where_they_are() {
    for limit in [None, Some(MemoryLimit::Unlimited)] {
        reads_and_writes_in_place(limit);
    }
}

fn reads_and_writes_in_place(limit: Option<MemoryLimit>) {
    let inner = HostDevice::new(&HostOptions::default()).expect("the host");
    let device = Arc::new(Watching { inner, lent: Mutex::default() });
    let mut options = SessionOptions::default();
    options.engine.planning.check = true;
    options.engine.memory.memory_limit = limit;
    let mut session = Session::with_device(&digits(), &options, device.clone()).expect("a session");
    let size = "1GiB".parse().expect("a size");
    let mut copying = Session::builder(&digits()).simulate_device(size).build().expect("a session that copies");
    for count in [1, 50, 1] {
        let owner = Arc::new(From(pixels(count), 0));
        let x = Tensor::over(DataType::Float32, &[count, 1, 8, 8], owner.clone()).expect("as many pixels");
        let logits = run(&mut session, x.clone());
        let lent = std::mem::take(&mut *device.lent.lock().expect("no one failed"));
        let address = |bytes: &[u8], to_write| Lent { address: bytes.as_ptr().addr(), bytes: bytes.len(), to_write };
        assert_eq!(lent, [address((*owner).as_ref(), false), address(logits.bytes(), true)], "{count} samples");
        assert_eq!(logits, run(&mut copying, x), "{count} samples");
        assert_eq!(Arc::strong_count(&owner), 1, "nothing of an input is kept");
    }
    let plan = session.plan().expect("a plan");
    let statistics = &plan.statistics;
    assert_eq!((statistics.bytes_to_device, statistics.bytes_from_device), (0, 0));
    assert_eq!(statistics.lent_bytes, 64 * 4 + 10 * 4);
}

#[test]
fn an_input_that_cannot_be_read_where_it_is_is_copied() {
    let inner = HostDevice::new(&HostOptions::default()).expect("the host");
    let device = Arc::new(Watching { inner, lent: Mutex::default() });
    let mut session = Session::with_device(&digits(), &SessionOptions::default(), device.clone()).expect("a session");
    let expected = run(&mut session, Tensor::new(DataType::Float32, &[3, 1, 8, 8], pixels(3)).expect("as many pixels"));
    let shifted = [vec![0; 4], pixels(3)].concat();
    let owner = Arc::new(From(shifted, 4));
    let address = (*owner).as_ref().as_ptr().addr();
    let x = Tensor::over(DataType::Float32, &[3, 1, 8, 8], owner).expect("as many pixels");
    device.lent.lock().expect("no one failed").clear();
    assert_eq!(run(&mut session, x), expected);
    let lent = device.lent.lock().expect("no one failed");
    assert!(lent.iter().all(|lent| lent.address != address && lent.address.is_multiple_of(16)), "{lent:?}");
}

#[test]
fn a_budget_has_inputs_copied() {
    let mut session = Session::new(&digits(), &SessionOptions::default()).expect("a session");
    let x = Tensor::new(DataType::Float32, &[50, 1, 8, 8], pixels(50)).expect("as many pixels");
    let expected = run(&mut session, x.clone());
    let mut small = Session::builder(&digits()).simulate_device("256KiB".parse().expect("a size")).build();
    let small = small.as_mut().expect("a session in a small device");
    assert_eq!(run(small, x), expected);
    assert!(small.plan().is_some_and(|plan| plan.statistics.lent_bytes == 0 && plan.statistics.bytes_to_device > 0));
}
