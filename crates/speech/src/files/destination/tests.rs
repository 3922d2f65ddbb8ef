//! Tests of `Destination`: atomic replacement, links, pipes, temporary files.

use super::*;

/// Returns the number of entries of a folder.
fn count_entries(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

#[test]
fn a_failed_write_keeps_the_old_file_and_adds_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    write_atomically(&path, b"old").unwrap();
    write_atomically(&path, b"new").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    // A folder cannot be replaced by a file.
    let taken = folder.path().join("taken");
    fs::create_dir_all(taken.join("inside")).unwrap();
    for path in [taken, folder.path().join("no/such")] {
        let error = write_atomically(&path, b"more").unwrap_err().to_string();
        let before =
            Destination::open(&path).and_then(|destination| destination.check_writable()).unwrap_err();
        assert_eq!(before.to_string(), error);
        assert!(!error.contains(TEMPORARY_SUFFIX) && error.contains("os error"), "{error}");
    }
    assert_eq!(count_entries(folder.path()), 2);
}

#[test]
fn names_of_255_bytes_are_written_and_longer_ones_are_system_errors() {
    let folder = tempfile::tempdir().unwrap();
    let suffix = ".ctm";
    for (letter, count) in [("x", 251), ("é", 125), ("語", 83), ("🎧", 62)] {
        let name = letter.repeat(count) + suffix;
        assert!((252..=255).contains(&name.len()));
        let path = folder.path().join(&name);
        for text in ["old", "new"] {
            Destination::open(&path).unwrap().check_writable().unwrap();
            write_atomically(&path, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        fs::write(folder.path().join(temporary_prefix(&path) + "abcdef" + TEMPORARY_SUFFIX), b"").unwrap();
        remove_temporary_files(&path).unwrap();
        fs::remove_file(&path).unwrap();
    }
    assert_eq!(count_entries(folder.path()), 0);
    let path = folder.path().join("x".repeat(252) + suffix);
    let error = write_atomically(&path, b"more").unwrap_err();
    assert!(error.raw_os_error().is_some(), "{error}");
}

#[test]
fn temporary_files_of_killed_processes_are_removed_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    for name in [".file.x7.tmp", "file.tmp", ".other.x.tmp", "file"] {
        fs::write(folder.path().join(name), b"").unwrap();
    }
    remove_temporary_files(&folder.path().join("file")).unwrap();
    assert_eq!(count_entries(folder.path()), 3);
    assert!(!folder.path().join(".file.x7.tmp").exists());
}

#[test]
fn staged_files_appear_only_when_committed() {
    let folder = tempfile::tempdir().unwrap();
    let in_folder = |name: &str| folder.path().join(name);
    fs::write(in_folder("a"), b"old").unwrap();
    let stage = |name: &str| {
        let destination = Destination::open(&in_folder(name)).unwrap();
        destination.stage(&mut |file| file.write_all(name.as_bytes())).unwrap()
    };
    let (a, b) = (stage("a"), stage("b"));
    assert_eq!((fs::read(in_folder("a")).unwrap().as_slice(), in_folder("b").exists()), (&b"old"[..], false));
    a.commit().unwrap();
    drop(b);
    assert_eq!(fs::read(in_folder("a")).unwrap(), b"a");
    assert_eq!(count_entries(folder.path()), 1);
    let failed = Destination::open(&in_folder("a")).unwrap().stage(&mut |file| {
        file.write_all(b"half")?;
        Err(io::Error::other("no more"))
    });
    assert!(failed.is_err());
    assert_eq!((fs::read(in_folder("a")).unwrap().as_slice(), count_entries(folder.path())), (&b"a"[..], 1));
}

#[cfg(unix)]
mod unix {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn links_are_followed_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let in_folder = |name: &str| folder.path().join(name);
        fs::create_dir(in_folder("far")).unwrap();
        fs::write(in_folder("far/file"), b"old").unwrap();
        symlink("far/file", in_folder("link")).unwrap();
        symlink(in_folder("link"), in_folder("link to it")).unwrap();
        symlink("far/not yet", in_folder("dangling")).unwrap();
        for (link, file) in [("link", "far/file"), ("link to it", "far/file"), ("dangling", "far/not yet")] {
            write_atomically(&in_folder(link), link.as_bytes()).unwrap();
            assert!(fs::symlink_metadata(in_folder(link)).unwrap().is_symlink());
            assert!(!fs::symlink_metadata(in_folder(file)).unwrap().is_symlink());
            assert_eq!(fs::read(in_folder(file)).unwrap(), link.as_bytes());
        }
        symlink("round", in_folder("round")).unwrap();
        assert!(write_atomically(&in_folder("round"), b"").is_err());
        assert_eq!((count_entries(folder.path()), count_entries(&in_folder("far"))), (5, 2));
    }

    #[test]
    fn pipes_are_written_through_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        for staged in [false, true] {
            let reader = {
                let path = path.clone();
                std::thread::spawn(move || fs::read(path).unwrap())
            };
            let destination = Destination::open(&path).unwrap();
            match staged {
                false => destination.write(b"through").unwrap(),
                true => destination.stage(&mut |file| file.write_all(b"through")).unwrap().commit().unwrap(),
            }
            assert_eq!(reader.join().unwrap(), b"through");
        }
        assert!(fs::metadata(&path).unwrap().file_type().is_fifo());
        assert_eq!(count_entries(folder.path()), 1);
    }

    #[test]
    fn waiting_for_a_reader_of_a_pipe_times_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let metadata = fs::metadata(&path).unwrap();
        let error = open_through(&path, &metadata, Duration::from_millis(30)).unwrap_err().to_string();
        assert!(error.starts_with("expected a process that reads this pipe"), "{error}");
    }

    #[test]
    fn open_files_are_written_through() {
        use std::os::fd::AsRawFd;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"first ").unwrap();
        let number = PathBuf::from(format!("/dev/fd/{}", file.as_raw_fd()));
        if number.exists() {
            write_atomically(&number, b"second").unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"first second");
            assert!(Destination::open(Path::new("/dev/stdout")).unwrap().is_standard());
        }
    }

    #[test]
    fn a_file_keeps_its_mode_and_a_new_one_has_the_default_mode() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new, plain) = (folder.path().join("a"), folder.path().join("b"), folder.path().join("c"));
        fs::write(&old, b"").unwrap();
        fs::set_permissions(&old, fs::Permissions::from_mode(0o640)).unwrap();
        File::create(&plain).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        [&old, &new].iter().for_each(|path| write_atomically(path, b"x").unwrap());
        assert_eq!((mode(&old), mode(&new)), (0o640, mode(&plain)));
    }
}
