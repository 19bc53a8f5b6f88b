//! The functions and handles of MPI. Implementations differ in what a handle is: in Open MPI, handles are addresses of symbols; in MPICH
//! and in the standard ABI of MPI 5, they are constants (see each one's header `mpi.h`).

use std::ffi::{c_char, c_int, c_void};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW, Symbol};

use crate::MpiError;
use crate::calls::Calls;
use crate::environment::Launcher;
use crate::options::Options;

/// Returns the names of the libraries that belong to a launcher, in the order in which they are tried.
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

/// `MPI_THREAD_FUNNELED` (one thread makes all calls) and `MPI_THREAD_MULTIPLE` (any thread may call at any time) in Open MPI and MPICH.
const THREADS: [c_int; 2] = [1, 3];
/// The same values in the standard ABI.
const ABI_THREADS: [c_int; 2] = [1024, 4096];
/// Opens a library only if the process has already loaded it: Linux's `RTLD_NOLOAD`.
const ONLY_IF_LOADED: c_int = 4;

/// A handle as it is passed: an address or a 32-bit number.
type Handle = usize;

/// A request; with MPICH, only its first four bytes.
type Request = usize;

type InitThread = unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> c_int;
type Asked = unsafe extern "C" fn(Handle, *mut c_int) -> c_int;
type Flag = unsafe extern "C" fn(*mut c_int) -> c_int;
type Copy = unsafe extern "C" fn(Handle, *mut Handle) -> c_int;
type Free = unsafe extern "C" fn(*mut Handle) -> c_int;
type Send = unsafe extern "C" fn(*const c_void, c_int, Handle, c_int, c_int, Handle, *mut Request) -> c_int;
type Receive = unsafe extern "C" fn(*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Request) -> c_int;
type Test = unsafe extern "C" fn(*mut Request, *mut c_int, *mut c_void) -> c_int;
type Abort = unsafe extern "C" fn(Handle, c_int) -> c_int;
type Finalize = unsafe extern "C" fn() -> c_int;

/// MPI in this process, for use by a single thread.
pub(crate) struct Mpi {
    /// The communicator through which messages go.
    through: Handle,
    byte: Handle,
    status_ignore: *mut c_void,
    comm_rank: Symbol<Asked>,
    comm_size: Symbol<Asked>,
    isend: Symbol<Send>,
    irecv: Symbol<Receive>,
    test: Symbol<Test>,
    abort: Symbol<Abort>,
    finalize: Symbol<Finalize>,
    comm_free: Symbol<Free>,
    /// Whether the communicator is a copy of the caller's communicator.
    is_copy: bool,
    /// Whether this object initialized MPI, rather than something else in the process before it.
    is_own: bool,
    // Dropped last, because the functions belong to it.
    _library: Library,
}

fn refused(function: &'static str, code: c_int) -> Result<(), MpiError> {
    if code == 0 { Ok(()) } else { Err(MpiError::Refused { function, code }) }
}

impl Mpi {
    /// Loads the library and initializes MPI, unless that was already done.
    ///
    /// # Safety
    /// If a communicator is given, it must be the address of an MPI handle of the library that is loaded.
    pub unsafe fn begin(
        options: &Options,
        communicator: Option<usize>,
        launcher: Option<Launcher>,
    ) -> Result<Mpi, MpiError> {
        let (library, found) = open(options.library.as_deref(), launcher, communicator.is_some())?;
        let incomplete =
            |function: &str| MpiError::Incomplete { library: found.clone(), function: function.to_owned() };
        let is_there = |symbol: &str| {
            // SAFETY: only the address is used.
            let symbol = unsafe { library.get::<*const c_void>(symbol.as_bytes()) }.ok()?;
            Some(symbol.into_raw() as Handle)
        };
        let (world, byte, status_ignore, [funneled, multiple], is_number) =
            match (is_there("ompi_mpi_comm_world"), is_there("ompi_mpi_byte")) {
                (Some(world), Some(byte)) => (world, byte, 0, THREADS, false),
                _ if found.contains("mpi_abi") => (0x101, 0x247, 0, ABI_THREADS, false),
                _ => (0x4400_0000, 0x4c00_010d, 1, THREADS, true),
            };
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: it has the type that the standard says.
                unsafe { library.get(concat!($name, "\0").as_bytes()) }.map_err(|_| incomplete($name))?
            };
        }
        let initialized: Symbol<Flag> = function!("MPI_Initialized");
        let init: Symbol<InitThread> = function!("MPI_Init_thread");
        let query: Symbol<Flag> = function!("MPI_Query_thread");
        let copy: Symbol<Copy> = function!("MPI_Comm_dup");
        let mut is_begun = 0;
        // SAFETY: it may be called at any time, and writes a number.
        refused("MPI_Initialized", unsafe { initialized(&mut is_begun) })?;
        let mut mpi = Mpi {
            through: world,
            byte,
            status_ignore: status_ignore as *mut c_void,
            comm_rank: function!("MPI_Comm_rank"),
            comm_size: function!("MPI_Comm_size"),
            isend: function!("MPI_Isend"),
            irecv: function!("MPI_Irecv"),
            test: function!("MPI_Test"),
            abort: function!("MPI_Abort"),
            finalize: function!("MPI_Finalize"),
            comm_free: function!("MPI_Comm_free"),
            is_copy: false,
            is_own: is_begun == 0,
            _library: library,
        };
        let mut provided = 0;
        if mpi.is_own {
            let asked = if options.others_call { multiple } else { funneled };
            // SAFETY: MPI has not begun; no arguments are given, and it writes a number.
            let code = unsafe { init(std::ptr::null_mut(), std::ptr::null_mut(), asked, &mut provided) };
            refused("MPI_Init_thread", code)?;
        } else {
            // SAFETY: MPI has begun, and it writes a number.
            refused("MPI_Query_thread", unsafe { query(&mut provided) })?;
        }
        if options.others_call && provided < multiple {
            mpi.end();
            return Err(MpiError::Threads);
        }
        if let Some(address) = communicator {
            // SAFETY: the caller's promise. MPICH's handles are numbers of 32 bits.
            let given = unsafe {
                if is_number {
                    Handle::try_from(*(address as *const u32)).unwrap_or(0)
                } else {
                    *(address as *const Handle)
                }
            };
            let mut own = 0;
            // SAFETY: MPI has begun, the handle belongs to it, and it writes a handle.
            refused("MPI_Comm_dup", unsafe { copy(given, &mut own) })?;
            (mpi.through, mpi.is_copy) = (own, true);
        }
        Ok(mpi)
    }

    fn asked(&self, function: &Symbol<Asked>, name: &'static str) -> Result<usize, MpiError> {
        let mut number = 0;
        // SAFETY: MPI has begun, on this thread, and it writes a number.
        refused(name, unsafe { function(self.through, &mut number) })?;
        Ok(usize::try_from(number).unwrap_or(0))
    }
}

impl Calls for Mpi {
    type Request = Request;

    fn rank(&self) -> Result<usize, MpiError> {
        self.asked(&self.comm_rank, "MPI_Comm_rank")
    }

    fn size(&self) -> Result<usize, MpiError> {
        self.asked(&self.comm_size, "MPI_Comm_size")
    }

    unsafe fn send(&self, address: *const u8, bytes: i32, peer: usize, tag: u32) -> Result<Request, MpiError> {
        let mut request = 0;
        // SAFETY: the caller's promise; MPI has begun, on this thread.
        let code = unsafe {
            (self.isend)(address.cast(), bytes, self.byte, peer as c_int, tag as c_int, self.through, &mut request)
        };
        refused("MPI_Isend", code)?;
        Ok(request)
    }

    unsafe fn receive(&self, address: *mut u8, bytes: i32, peer: usize, tag: u32) -> Result<Request, MpiError> {
        let mut request = 0;
        // SAFETY: as for `send`.
        let code = unsafe {
            (self.irecv)(address.cast(), bytes, self.byte, peer as c_int, tag as c_int, self.through, &mut request)
        };
        refused("MPI_Irecv", code)?;
        Ok(request)
    }

    fn is_done(&self, request: &mut Request) -> Result<bool, MpiError> {
        let mut flag = 0;
        // SAFETY: the request comes from `send` or `receive`, and was not done before.
        refused("MPI_Test", unsafe { (self.test)(request, &mut flag, self.status_ignore) })?;
        Ok(flag != 0)
    }

    fn abort(&self) {
        // SAFETY: MPI has begun, on this thread.
        unsafe { (self.abort)(self.through, 1) };
    }

    fn end(&mut self) {
        if self.is_copy {
            // SAFETY: MPI has begun, and no message goes through the communicator any more.
            unsafe { (self.comm_free)(&mut self.through) };
        }
        if self.is_own {
            // SAFETY: MPI has begun, on this thread, and nothing calls it afterwards.
            unsafe { (self.finalize)() };
        }
    }
}

/// Loads the library of this name, or the first of the launcher's libraries that exists. A library that the process has already loaded
/// comes first, and is the only possible choice if its handles are to be used.
fn open(name: Option<&str>, launcher: Option<Launcher>, has_handle: bool) -> Result<(Library, String), MpiError> {
    let names = match name {
        Some(name) => vec![name],
        None => names(launcher.filter(|_| !has_handle)).to_vec(),
    };
    // SAFETY: loading an MPI library has no effect that this process would notice. What the library itself loads needs its symbols.
    let load = |name: &str, flags: c_int| unsafe { Library::open(Some(name), RTLD_NOW | RTLD_GLOBAL | flags) };
    let mut tried = Vec::new();
    for flags in if has_handle { &[ONLY_IF_LOADED][..] } else { &[ONLY_IF_LOADED, 0] } {
        tried.clear();
        for name in &names {
            match load(name, *flags) {
                Ok(library) => return Ok((library, (*name).to_owned())),
                Err(error) => tried.push(((*name).to_owned(), error.to_string())),
            }
        }
    }
    Err(MpiError::Missing { tried })
}
