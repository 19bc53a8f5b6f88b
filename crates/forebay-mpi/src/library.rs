//! The functions and handles of MPI. Implementations differ in what a handle is: Open MPI's are addresses of symbols; those of MPICH and
//! of MPI 5's standard ABI are constants (the header `mpi.h` of each).

use std::ffi::{c_char, c_int, c_void};

use libloading::os::unix::{Library, Symbol, RTLD_GLOBAL, RTLD_NOW};

use crate::environment::Launcher;
use crate::MpiError;

/// Names of the libraries that belong to a launcher, in the order in which they are tried.
const fn names(launcher: Option<Launcher>) -> &'static [&'static str] {
    match launcher {
        Some(Launcher::OpenMpi) => &["libmpi.so.40", "libmpi.so"],
        Some(Launcher::Mpich) => {
            &["libmpich.so.12", "libmpi.so.12", "libmpi_abi.so.1", "libmpi_abi.so.0", "libmpich.so", "libmpi.so"]
        }
        Some(Launcher::Slurm) | None => {
            &["libmpi.so.40", "libmpich.so.12", "libmpi.so.12", "libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi.so"]
        }
    }
}

/// `MPI_THREAD_FUNNELED`, in every implementation: one thread makes all calls.
const THREAD_FUNNELED: c_int = 1;

/// A handle as it is passed: an address, or a number of 32 bits.
type Handle = usize;

/// A request; of MPICH, its first four bytes.
pub(crate) type Request = usize;

type InitThread = unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> c_int;
type Asked = unsafe extern "C" fn(Handle, *mut c_int) -> c_int;
type Flag = unsafe extern "C" fn(*mut c_int) -> c_int;
type Send = unsafe extern "C" fn(*const c_void, c_int, Handle, c_int, c_int, Handle, *mut Request) -> c_int;
type Receive = unsafe extern "C" fn(*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Request) -> c_int;
type Test = unsafe extern "C" fn(*mut Request, *mut c_int, *mut c_void) -> c_int;
type Abort = unsafe extern "C" fn(Handle, c_int) -> c_int;
type Finalize = unsafe extern "C" fn() -> c_int;

/// MPI, as this process has it. For one thread.
pub(crate) struct Mpi {
    world: Handle,
    byte: Handle,
    status_ignore: *mut c_void,
    comm_rank: Symbol<Asked>,
    comm_size: Symbol<Asked>,
    isend: Symbol<Send>,
    irecv: Symbol<Receive>,
    test: Symbol<Test>,
    abort: Symbol<Abort>,
    finalize: Symbol<Finalize>,
    /// Whether this process has begun MPI, and not something else in it before.
    is_own: bool,
    // Dropped last: the functions are its.
    _library: Library,
}

fn refused(function: &'static str, code: c_int) -> Result<(), MpiError> {
    if code == 0 {
        Ok(())
    } else {
        Err(MpiError::Refused { function, code })
    }
}

impl Mpi {
    /// Loads the library, by a name of its own where one is given, and begins MPI unless that was done.
    pub fn begin(name: Option<&str>, launcher: Option<Launcher>) -> Result<Mpi, MpiError> {
        let (library, found) = open(name, launcher)?;
        let incomplete =
            |function: &str| MpiError::Incomplete { library: found.clone(), function: function.to_owned() };
        let is_there = |symbol: &str| {
            // SAFETY: only the address is looked at.
            let symbol = unsafe { library.get::<*const c_void>(symbol.as_bytes()) }.ok()?;
            Some(symbol.into_raw() as Handle)
        };
        let (world, byte, status_ignore) = match (is_there("ompi_mpi_comm_world"), is_there("ompi_mpi_byte")) {
            (Some(world), Some(byte)) => (world, byte, 0),
            _ if found.contains("mpi_abi") => (0x101, 0x247, 0),
            _ => (0x4400_0000, 0x4c00_010d, 1),
        };
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: it has the type that the standard says.
                unsafe { library.get(concat!($name, "\0").as_bytes()) }.map_err(|_| incomplete($name))?
            };
        }
        let initialized: Symbol<Flag> = function!("MPI_Initialized");
        let init: Symbol<InitThread> = function!("MPI_Init_thread");
        let mut is_begun = 0;
        // SAFETY: it may be called at any time, and writes a number.
        refused("MPI_Initialized", unsafe { initialized(&mut is_begun) })?;
        let mpi = Mpi {
            world,
            byte,
            status_ignore: status_ignore as *mut c_void,
            comm_rank: function!("MPI_Comm_rank"),
            comm_size: function!("MPI_Comm_size"),
            isend: function!("MPI_Isend"),
            irecv: function!("MPI_Irecv"),
            test: function!("MPI_Test"),
            abort: function!("MPI_Abort"),
            finalize: function!("MPI_Finalize"),
            is_own: is_begun == 0,
            _library: library,
        };
        if mpi.is_own {
            let mut provided = 0;
            // SAFETY: MPI has not begun; no arguments are given, and it writes a number.
            let code = unsafe { init(std::ptr::null_mut(), std::ptr::null_mut(), THREAD_FUNNELED, &mut provided) };
            refused("MPI_Init_thread", code)?;
        }
        Ok(mpi)
    }

    fn asked(&self, function: &Symbol<Asked>, name: &'static str) -> Result<usize, MpiError> {
        let mut number = 0;
        // SAFETY: MPI has begun, on this thread, and it writes a number.
        refused(name, unsafe { function(self.world, &mut number) })?;
        Ok(usize::try_from(number).unwrap_or(0))
    }

    pub fn rank(&self) -> Result<usize, MpiError> {
        self.asked(&self.comm_rank, "MPI_Comm_rank")
    }

    pub fn size(&self) -> Result<usize, MpiError> {
        self.asked(&self.comm_size, "MPI_Comm_size")
    }

    /// Begins to send bytes.
    ///
    /// # Safety
    /// They are live, and nothing writes them, until the request is done.
    pub unsafe fn send(&self, address: *const u8, bytes: i32, peer: usize, tag: u32) -> Result<Request, MpiError> {
        let mut request = 0;
        // SAFETY: the caller's promise; MPI has begun, on this thread.
        let code = unsafe {
            (self.isend)(address.cast(), bytes, self.byte, peer as c_int, tag as c_int, self.world, &mut request)
        };
        refused("MPI_Isend", code)?;
        Ok(request)
    }

    /// Begins to receive bytes.
    ///
    /// # Safety
    /// They are live, and nothing touches them, until the request is done.
    pub unsafe fn receive(&self, address: *mut u8, bytes: i32, peer: usize, tag: u32) -> Result<Request, MpiError> {
        let mut request = 0;
        // SAFETY: as for `send`.
        let code = unsafe {
            (self.irecv)(address.cast(), bytes, self.byte, peer as c_int, tag as c_int, self.world, &mut request)
        };
        refused("MPI_Irecv", code)?;
        Ok(request)
    }

    /// Whether a request is done; all others go on, too.
    pub fn is_done(&self, request: &mut Request) -> Result<bool, MpiError> {
        let mut flag = 0;
        // SAFETY: the request is one of `send` or `receive`, and not done before.
        refused("MPI_Test", unsafe { (self.test)(request, &mut flag, self.status_ignore) })?;
        Ok(flag != 0)
    }

    /// Ends all processes.
    pub fn abort(&self) {
        // SAFETY: MPI has begun, on this thread.
        unsafe { (self.abort)(self.world, 1) };
    }

    /// Ends MPI in this process, if it began it. Waits for the others.
    pub fn end(&self) {
        if self.is_own {
            // SAFETY: MPI has begun, on this thread, and nothing calls it afterwards.
            unsafe { (self.finalize)() };
        }
    }
}

/// Loads the library of this name, or the first one of the launcher's that is there.
fn open(name: Option<&str>, launcher: Option<Launcher>) -> Result<(Library, String), MpiError> {
    let mut tried = Vec::new();
    let names = match name {
        Some(name) => vec![name],
        None => names(launcher).to_vec(),
    };
    for name in names {
        // SAFETY: a library of MPI does nothing when it is loaded that this process would notice. What it loads itself needs its symbols.
        match unsafe { Library::open(Some(name), RTLD_NOW | RTLD_GLOBAL) } {
            Ok(library) => return Ok((library, name.to_owned())),
            Err(error) => tried.push((name.to_owned(), error.to_string())),
        }
    }
    Err(MpiError::Missing { tried })
}
