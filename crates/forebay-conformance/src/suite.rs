//! The source of cases: a `.tar.gz` archive or a folder of folders.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use flate2::read::GzDecoder;

/// The archives in the repository.
const PUBLIC: [&str; 3] = ["node-public.tar.gz", "node-values.tar.gz", "node-rest.tar.gz"];

/// A case: its files by their path in its folder.
#[derive(Clone, Debug, Default)]
pub struct Case {
    /// `model.onnx`, `test_data_set_0/input_0.pb` and the like.
    pub files: BTreeMap<String, Vec<u8>>,
}

/// Cases by name.
#[derive(Clone, Debug, Default)]
pub struct Suite {
    /// All cases.
    pub cases: BTreeMap<String, Case>,
}

impl Suite {
    /// Returns the folder with the repository's cases.
    pub fn public_folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/onnx")
    }

    /// Returns the repository's cases.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn public() -> io::Result<Suite> {
        let mut suite = Suite::default();
        for archive in PUBLIC {
            suite.cases.extend(Suite::read(&Suite::public_folder().join(archive))?.cases);
        }
        Ok(suite)
    }

    /// Reads a suite from an archive (`.tar.gz`) with a folder per case, or from a folder with a folder per case.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn read(path: &Path) -> io::Result<Suite> {
        let mut suite = Suite::default();
        if path.is_dir() {
            for folder in fs::read_dir(path)? {
                let folder = folder?;
                let name = folder.file_name().to_string_lossy().into_owned();
                let mut case = Case::default();
                read_folder(&folder.path(), "", &mut case)?;
                suite.cases.insert(name, case);
            }
            return Ok(suite.with_models());
        }
        for entry in tar::Archive::new(GzDecoder::new(File::open(path)?)).entries()? {
            let mut entry = entry?;
            let path = entry.path()?.into_owned();
            let parts: Vec<String> = path
                .components()
                .filter_map(|part| match part {
                    Component::Normal(part) => Some(part.to_string_lossy().into_owned()),
                    _ => None,
                })
                .collect();
            // SUITE/CASE/FILE, where FILE can be in a subfolder.
            if let ([_, name, file @ ..], true) = (parts.as_slice(), entry.header().entry_type().is_file()) {
                let mut bytes = Vec::new();
                entry.read_to_end(&mut bytes)?;
                suite.cases.entry(name.clone()).or_default().files.insert(file.join("/"), bytes);
            }
        }
        Ok(suite.with_models())
    }

    /// Removes folders that contain no model.
    fn with_models(mut self) -> Suite {
        self.cases.retain(|_, case| case.files.contains_key("model.onnx"));
        self
    }
}

/// Reads the files of a folder and of the folders in it.
fn read_folder(folder: &Path, prefix: &str, case: &mut Case) -> io::Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            read_folder(&entry.path(), &format!("{name}/"), case)?;
        } else {
            case.files.insert(name, fs::read(entry.path())?);
        }
    }
    Ok(())
}
