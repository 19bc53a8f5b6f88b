//! Content that is named last, because its name depends on the content.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use crate::pending::{Content, explained, sync_folder, written};
use crate::temporary::Temporary;

/// Content that is complete and safe on its file system, but has no name yet. If dropped, it is discarded.
///
/// ```
/// use forebay_files::Unnamed;
///
/// let folder = tempfile::tempdir()?;
/// let text = "twelve bytes";
/// let file = Unnamed::new(folder.path(), "text-".as_ref(), |file| file.write_all(text.as_bytes()))?;
/// file.commit(format!("text-{}", text.len()).as_ref())?;
/// assert_eq!(std::fs::read_to_string(folder.path().join("text-12"))?, text);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Unnamed {
    folder: PathBuf,
    file: Temporary,
}

impl Unnamed {
    /// Takes the content that `fill` writes, for a file in a folder. If the file system does not support files without names, a temporary
    /// name begins with `stem`.
    ///
    /// # Errors
    /// If no file can be created in the folder, and errors of `fill` or the system; without the path.
    pub fn new(
        folder: &Path,
        stem: &OsStr,
        fill: impl FnOnce(&mut dyn Content) -> io::Result<()>,
    ) -> io::Result<Unnamed> {
        let complete = || {
            let mut file = Temporary::new(folder, stem)?;
            written(file.file(), fill)?.sync_all()?;
            Ok(Unnamed { folder: folder.to_owned(), file })
        };
        complete().map_err(explained)
    }

    /// Gives the content its name in the folder, replacing whatever has that name now.
    ///
    /// # Errors
    /// The system's error. An existing file is then unchanged, unless only the last part failed, making the replacement durable.
    pub fn commit(self, name: &OsStr) -> io::Result<()> {
        self.file.persist(&self.folder.join(name))?;
        sync_folder(&self.folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_without_a_name_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let is_empty = || std::fs::read_dir(folder.path()).unwrap().next().is_none();
        drop(Unnamed::new(folder.path(), "x".as_ref(), |file| file.write_all(b"content")).unwrap());
        assert!(is_empty());
        let failed = Unnamed::new(folder.path(), "x".as_ref(), |_| Err(io::Error::other("no content")));
        assert_eq!(failed.unwrap_err().to_string(), "no content");
        assert!(is_empty());
        std::fs::write(folder.path().join("name"), b"old").unwrap();
        let file = Unnamed::new(folder.path(), "x".as_ref(), |file| file.write_all(b"new")).unwrap();
        assert_eq!(std::fs::read(folder.path().join("name")).unwrap(), b"old");
        file.commit("name".as_ref()).unwrap();
        assert_eq!(std::fs::read(folder.path().join("name")).unwrap(), b"new");
        Unnamed::new(&folder.path().join("missing"), "x".as_ref(), |_| Ok(())).unwrap_err();
    }
}
