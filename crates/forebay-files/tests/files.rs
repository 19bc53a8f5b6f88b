//! Whatever a path names: it is written as a good Unix tool writes it, or refused and left alone.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use forebay_files::{Pending, check_folder, check_writable, free_bytes, write};
use rustix::fs::{CWD, FileType, Mode, mknodat};

/// What a folder holds, by name.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn files_appear_whole_and_leave_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let partial = folder.path().join("model.onnx.partial");
    fs::write(&partial, "the user's own").unwrap();
    for content in ["first", "second"] {
        check_writable(&path).unwrap();
        write(&path, content.as_bytes()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), content);
    }
    assert_eq!(fs::read_to_string(&partial).unwrap(), "the user's own");
    assert_eq!(names(folder.path()), ["model.onnx", "model.onnx.partial"]);
}

#[test]
fn new_files_follow_the_umask_and_old_ones_keep_their_permissions() {
    let folder = tempfile::tempdir().unwrap();
    let (usual, ours) = (folder.path().join("usual"), folder.path().join("ours"));
    fs::write(&usual, "").unwrap();
    write(&ours, b"").unwrap();
    assert_eq!(mode(&ours), mode(&usual));
    for kept in [0o600, 0o640, 0o755] {
        fs::set_permissions(&ours, Permissions::from_mode(kept)).unwrap();
        write(&ours, b"new").unwrap();
        assert_eq!(mode(&ours), kept);
    }
}

#[test]
fn protected_files_stay_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("precious");
    fs::write(&path, "precious").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o400)).unwrap();
    for error in [check_writable(&path).unwrap_err(), write(&path, b"new").unwrap_err()] {
        assert!(error.to_string().contains("write-protected (mode 0400"), "{error}");
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn symbolic_links_stay_and_what_they_point_to_is_written() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("real")).unwrap();
    let (link, chain) = (folder.path().join("link"), folder.path().join("chain"));
    symlink("real/file", &link).unwrap();
    symlink("link", &chain).unwrap();
    // The first one points to nothing yet.
    for content in ["first", "second"] {
        check_writable(&chain).unwrap();
        write(&chain, content.as_bytes()).unwrap();
        assert_eq!(fs::read_to_string(folder.path().join("real/file")).unwrap(), content);
        assert!(link.is_symlink() && chain.is_symlink());
    }
    let circle = folder.path().join("circle");
    symlink("circle", &circle).unwrap();
    assert!(write(&circle, b"").is_err() && circle.is_symlink());
    symlink("nowhere/file", folder.path().join("lost")).unwrap();
    assert!(check_writable(&folder.path().join("lost")).is_err());
}

#[test]
fn devices_are_written_through() {
    check_writable("/dev/null".as_ref()).unwrap();
    write("/dev/null".as_ref(), b"content").unwrap();
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    let error = write("/dev/full".as_ref(), b"content").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    let folder = tempfile::tempdir().unwrap();
    let node = folder.path().join("n");
    if mknodat(CWD, &node, FileType::CharacterDevice, Mode::from_raw_mode(0o666), rustix::fs::makedev(1, 3)).is_err() {
        println!("SKIPPED: only a privileged user can create device nodes");
        return;
    }
    check_writable(&node).unwrap();
    // A file system may refuse devices; then this is an error, and the node still one.
    let _ = write(&node, b"content");
    assert!(fs::symlink_metadata(&node).unwrap().file_type().is_char_device());
    let block = folder.path().join("b");
    mknodat(CWD, &block, FileType::BlockDevice, Mode::from_raw_mode(0o666), rustix::fs::makedev(7, 0)).unwrap();
    assert!(check_writable(&block).unwrap_err().to_string().contains("block device"));
    assert!(write(&block, b"content").is_err());
}

#[test]
fn pipes_are_written_through() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    // A check does not open it: a reader would take that for the end.
    check_writable(&pipe).unwrap();
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::read(pipe).unwrap()
    });
    write(&pipe, &[7; 100_000]).unwrap();
    assert_eq!(reader.join().unwrap(), [7; 100_000]);
    assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
}

#[test]
fn open_files_of_the_process_are_added_to() {
    use std::os::fd::AsRawFd;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let mut file = fs::OpenOptions::new().create(true).append(true).open(&path).unwrap();
    file.write_all(b"before\n").unwrap();
    write(format!("/dev/fd/{}", file.as_raw_fd()).as_ref(), b"between\n").unwrap();
    file.write_all(b"after\n").unwrap();
    assert_eq!(fs::read_to_string(path).unwrap(), "before\nbetween\nafter\n");
}

#[test]
fn what_is_no_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for (path, word) in [
        (folder.path().to_owned(), "folder"),
        (socket, "socket"),
        (folder.path().join("new/"), "no such folder"),
        (folder.path().join("missing/file"), "No such file"),
        ("".into(), "empty"),
    ] {
        let errors = [check_writable(&path).unwrap_err(), write(&path, b"").unwrap_err()];
        for error in errors {
            assert!(error.to_string().contains(word), "{}: {error}", path.display());
        }
    }
    assert_eq!(names(folder.path()), ["socket"]);
}

#[test]
fn what_is_not_committed_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    write(&path, b"old").unwrap();
    drop(Pending::new(&path, |file| file.write_all(b"new")).unwrap());
    Pending::new(&path, |_| Err(std::io::Error::other("no content"))).unwrap_err();
    assert_eq!((fs::read(&path).unwrap(), names(folder.path())), (b"old".to_vec(), vec!["file".to_owned()]));
}

#[test]
fn folders_are_checked_without_being_made() {
    let folder = tempfile::tempdir().unwrap();
    check_folder(folder.path()).unwrap();
    check_folder(&folder.path().join("new/deep")).unwrap();
    check_folder("new-folder-of-forebay".as_ref()).unwrap();
    assert!(free_bytes(&folder.path().join("new/deep")).unwrap() > 0);
    assert!(free_bytes("new-folder-of-forebay".as_ref()).unwrap() > 0);
    write(&folder.path().join("file"), b"").unwrap();
    assert!(check_folder(&folder.path().join("file")).is_err());
    assert!(check_folder(&folder.path().join("file/deep")).is_err());
    symlink("nowhere", folder.path().join("lost")).unwrap();
    assert!(check_folder(&folder.path().join("lost")).is_err());
    assert_eq!(names(folder.path()), ["file", "lost"]);
}

#[test]
fn writers_of_one_file_leave_one_of_their_contents() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    write(&path, &[0; 50_000]).unwrap();
    std::thread::scope(|scope| {
        for writer in 1..4u8 {
            let path = &path;
            scope.spawn(move || (0..20).for_each(|_| write(path, &[writer; 50_000]).unwrap()));
        }
        for _ in 0..200 {
            let mut read = Vec::new();
            fs::File::open(&path).unwrap().read_to_end(&mut read).unwrap();
            assert_eq!(read.len(), 50_000);
            assert!(read.iter().all(|&byte| byte == read[0]));
        }
    });
    assert_eq!(names(folder.path()), ["file"]);
}
