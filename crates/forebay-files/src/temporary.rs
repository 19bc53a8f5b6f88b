//! A file that has no name until it is complete.
//!
//! If the file system supports it, the file has no name at all (`O_TMPFILE`), so that a process that is killed leaves nothing behind.
//! Otherwise it is named after its target, followed by a random part and `.partial`, and is created only where nothing exists (`O_EXCL`).

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{AtFlags, CWD, OFlags, linkat};
use tempfile::{Builder, NamedTempFile};

/// The suffix of temporary file names.
pub const SUFFIX: &str = ".partial";
/// The mode from which the system subtracts the umask.
const MODE: u32 = 0o666;
/// File names can have 255 bytes; the random part and the suffix need some of them.
const STEM_BYTES_MAX: usize = 200;
/// The temporary names in use, which [`exit`] removes; the names of dropped files stay in the list. It is locked while a file without a
/// name gets one.
static NAMES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Ends the process like [`std::process::exit`], leaving no temporary file, whatever other threads are writing.
pub fn exit(code: i32) -> ! {
    let names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    for name in names.iter() {
        // If the file is already gone, so much the better.
        let _ = std::fs::remove_file(name);
    }
    std::process::exit(code)
}

/// A file on its way to its destination. If dropped before it gets there, it leaves nothing behind.
#[derive(Debug)]
pub(crate) struct Temporary {
    folder: PathBuf,
    /// The beginning of its name, if it needs one.
    stem: OsString,
    content: Content,
}

#[derive(Debug)]
enum Content {
    /// Without a name.
    Nameless(File),
    /// Under a temporary name, and removed when dropped.
    Named(NamedTempFile),
}

impl Temporary {
    /// Creates an empty file in a folder, for a target of this name.
    ///
    /// # Errors
    /// The system's error.
    pub fn new(folder: &Path, name: &OsStr) -> io::Result<Temporary> {
        let mut stem = OsStr::from_bytes(&name.as_bytes()[..name.len().min(STEM_BYTES_MAX)]).to_owned();
        stem.push(".");
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(MODE).custom_flags(OFlags::TMPFILE.bits() as i32);
        let content = match options.open(folder) {
            Ok(file) => Content::Nameless(file),
            // Whatever prevents a file without a name may still allow one with a name; otherwise this gives the reason.
            Err(_) => Content::Named(named(folder, &stem)?),
        };
        Ok(Temporary { folder: folder.to_owned(), stem, content })
    }

    /// The file.
    pub fn file(&mut self) -> &mut File {
        match &mut self.content {
            Content::Nameless(file) => file,
            Content::Named(file) => file.as_file_mut(),
        }
    }

    /// Gives the file its name, replacing whatever has that name now.
    ///
    /// # Errors
    /// The system's error; whatever had the name is then unchanged.
    pub fn persist(self, path: &Path) -> io::Result<()> {
        let file = match self.content {
            Content::Nameless(file) => {
                let names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
                match link(&self.folder, &self.stem, &file) {
                    Ok(linked) => return linked.persist(path).map(|_| ()).map_err(|failed| failed.error),
                    Err(_) => drop(names),
                }
                copied(&self.folder, &self.stem, file)?
            }
            Content::Named(file) => file,
        };
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        let name = file.path().to_owned();
        let persisted = file.persist(path).map(|_| ()).map_err(|failed| failed.error);
        names.retain(|other| *other != name);
        persisted
    }
}

fn named(folder: &Path, stem: &OsStr) -> io::Result<NamedTempFile> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(MODE);
    // Not the builder's own method, whose errors name the temporary file, which the user knows nothing about.
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let file = builder(stem).make_in(folder, |path| options.open(path))?;
    names.push(file.path().to_owned());
    Ok(file)
}

fn builder<'a>(stem: &'a OsStr) -> Builder<'a, 'static> {
    let mut builder = Builder::new();
    builder.prefix(stem).suffix(SUFFIX).rand_bytes(8);
    builder
}

/// Gives a temporary name to a file without a name.
fn link(folder: &Path, stem: &OsStr, file: &File) -> io::Result<NamedTempFile> {
    let number = format!("/proc/self/fd/{}", file.as_raw_fd());
    builder(stem).make_in(folder, |path| {
        linkat(CWD, &number, CWD, path, AtFlags::SYMLINK_FOLLOW)?;
        file.try_clone()
    })
}

/// Copies the content to a file with a temporary name, for systems that cannot name a file later.
fn copied(folder: &Path, stem: &OsStr, mut file: File) -> io::Result<NamedTempFile> {
    let mut named = named(folder, stem)?;
    file.rewind()?;
    io::copy(&mut file, named.as_file_mut())?;
    named.as_file().set_permissions(file.metadata()?.permissions())?;
    named.as_file().sync_all()?;
    Ok(named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// The names of everything in a folder.
    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }

    /// A file for each way of reaching its destination.
    fn ways(folder: &Path) -> [Temporary; 3] {
        let stem = OsString::from("x.");
        let nameless = tempfile::tempfile_in(folder).unwrap();
        let with = |content| Temporary { folder: folder.to_owned(), stem: stem.clone(), content };
        [
            Temporary::new(folder, "x".as_ref()).unwrap(),
            with(Content::Named(named(folder, &stem).unwrap())),
            // A file whose name is gone cannot get another, so it is copied.
            with(Content::Nameless(nameless)),
        ]
    }

    #[test]
    fn every_way_leaves_the_content_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        for (way, mut file) in ways(folder.path()).into_iter().enumerate() {
            file.file().write_all(b"content").unwrap();
            let path = folder.path().join(format!("file{way}"));
            file.persist(&path).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"content");
            std::fs::remove_file(path).unwrap();
            assert!(names(folder.path()).iter().all(|name| name.ends_with(SUFFIX)), "{:?}", names(folder.path()));
        }
        assert_eq!(names(folder.path()), Vec::<String>::new());
    }

    #[test]
    fn dropped_files_leave_nothing_and_failures_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let taken = folder.path().join("taken");
        std::fs::create_dir(&taken).unwrap();
        drop(ways(folder.path()));
        for file in ways(folder.path()) {
            file.persist(&taken).unwrap_err();
        }
        assert_eq!(names(folder.path()), ["taken"]);
    }

    #[test]
    fn errors_do_not_name_the_temporary_file() {
        let error = Temporary::new("/proc".as_ref(), "x".as_ref()).unwrap_err().to_string();
        assert!(!error.contains(SUFFIX), "{error}");
    }

    #[test]
    fn long_names_leave_room_for_the_random_part() {
        let folder = tempfile::tempdir().unwrap();
        let name = "n".repeat(255);
        named(folder.path(), &Temporary::new(folder.path(), name.as_ref()).unwrap().stem).unwrap();
    }
}
