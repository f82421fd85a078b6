//! A file system in memory for the tests of this folder: it forgets what was not synced, and fails at a
//! chosen operation.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;

use crate::error::{Error, ErrorKind, Result};
use crate::io::{DirEntry, Directory, FileLock, Files, RandomFile, WritableFile};

/// What a crash leaves of that which was not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// Nothing.
    Forgets,
    /// Everything (the process died, the machine did not).
    Keeps,
    /// Names, and half of the bytes.
    KeepsHalf,
    /// Names and lengths, but the bytes are zeros.
    Zeroes,
}

pub const CRASHES: [Crash; 4] = [Crash::Forgets, Crash::Keeps, Crash::KeepsHalf, Crash::Zeroes];

#[derive(Debug, Clone, Default)]
struct Node {
    bytes: Vec<u8>,
    synced_len: usize,
}

#[derive(Debug, Clone, Default)]
struct State {
    nodes: Vec<Node>,
    names: BTreeMap<PathBuf, usize>,
    synced_names: BTreeMap<PathBuf, usize>,
    /// Operations that change something until all of them fail; `None`: never.
    operations_left: Option<u64>,
    operations: u64,
}

impl State {
    fn change(&mut self) -> Result<()> {
        self.operations += 1;
        match &mut self.operations_left {
            None => Ok(()),
            Some(0) => Err(Error::new(ErrorKind::Io, "injected fault")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }

    fn node(&self, path: &Path) -> Result<usize> {
        self.names
            .get(path)
            .copied()
            .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("{}: none", path.display())))
    }
}

#[derive(Debug, Clone, Default)]
pub struct TestFiles(Arc<Mutex<State>>);

impl TestFiles {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// A durable file with these bytes.
    pub fn put(&self, path: &Path, bytes: &[u8]) {
        let mut state = self.state();
        state.nodes.push(Node { bytes: bytes.to_vec(), synced_len: bytes.len() });
        let node = state.nodes.len() - 1;
        state.names.insert(path.to_owned(), node);
        state.synced_names.insert(path.to_owned(), node);
    }

    pub fn contents(&self, path: &Path) -> Vec<u8> {
        let state = self.state();
        state.nodes[state.node(path).unwrap()].bytes.clone()
    }

    pub fn names(&self) -> Vec<String> {
        let name = |p: &PathBuf| p.file_name().unwrap().to_str().unwrap().to_owned();
        self.state().names.keys().map(name).collect()
    }

    /// Changing operations so far.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// Every changing operation fails after `left` more.
    pub fn fail_after(&self, left: u64) {
        self.state().operations_left = Some(left);
    }

    /// The disk as the next process finds it, without faults.
    pub fn crash(&self, how: Crash) -> Self {
        let mut state = self.state().clone();
        (state.operations_left, state.operations) = (None, 0);
        if how == Crash::Forgets {
            state.names = state.synced_names.clone();
        }
        for node in &mut state.nodes {
            let (synced, len) = (node.synced_len, node.bytes.len());
            match how {
                Crash::Forgets => node.bytes.truncate(synced),
                Crash::Keeps => {}
                Crash::KeepsHalf => node.bytes.truncate(synced + (len - synced) / 2),
                Crash::Zeroes => node.bytes[synced..].fill(0),
            }
            // What survived a crash of the machine is on disk; after the death of a process it is not.
            if how != Crash::Keeps {
                node.synced_len = node.bytes.len();
            }
        }
        if how != Crash::Keeps {
            state.synced_names = state.names.clone();
        }
        Self(Arc::new(Mutex::new(state)))
    }
}

impl Files for TestFiles {
    fn create(&self, path: &Path) -> Result<Box<dyn WritableFile>> {
        let mut state = self.state();
        state.change()?;
        if state.names.contains_key(path) {
            return Err(Error::new(ErrorKind::AlreadyExists, path.display().to_string()));
        }
        state.nodes.push(Node::default());
        let node = state.nodes.len() - 1;
        state.names.insert(path.to_owned(), node);
        Ok(Box::new(Writer { files: self.clone(), node }))
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn RandomFile>> {
        let state = self.state();
        let bytes = Bytes::from(state.nodes[state.node(path)?].bytes.clone());
        Ok(Arc::new(Snapshot { path: path.to_owned(), bytes }))
    }

    fn truncate(&self, path: &Path, len: u64) -> Result<()> {
        let mut state = self.state();
        state.change()?;
        let node = state.node(path)?;
        state.nodes[node].bytes.truncate(len as usize);
        state.nodes[node].synced_len = state.nodes[node].bytes.len();
        Ok(())
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        let state = self.state();
        let inside = state.names.iter().filter(|(path, _)| path.parent() == Some(dir));
        Ok(inside
            .map(|(path, node)| DirEntry {
                name: path.file_name().unwrap().to_str().unwrap().to_owned(),
                len: state.nodes[*node].bytes.len() as u64,
                is_dir: false,
            })
            .collect())
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        Ok(self.state().names.contains_key(path))
    }

    fn create_dir_all(&self, _dir: &Path) -> Result<()> {
        self.state().change()
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let mut state = self.state();
        state.change()?;
        let node = state.node(from)?;
        state.names.remove(from);
        state.names.insert(to.to_owned(), node);
        Ok(())
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let mut state = self.state();
        state.change()?;
        state.node(path)?;
        state.names.remove(path);
        Ok(())
    }

    fn remove_dir(&self, _dir: &Path) -> Result<()> {
        self.state().change()
    }

    fn open_dir(&self, dir: &Path) -> Result<Box<dyn Directory>> {
        Ok(Box::new(OpenDirectory { files: self.clone(), path: dir.to_owned() }))
    }

    fn lock(&self, _path: &Path) -> Result<Box<dyn FileLock>> {
        Err(Error::new(ErrorKind::Locked, "not used here"))
    }
}

#[derive(Debug)]
struct OpenDirectory {
    files: TestFiles,
    path: PathBuf,
}

impl Directory for OpenDirectory {
    fn sync(&self) -> Result<()> {
        let dir = Some(self.path.as_path());
        let mut state = self.files.state();
        state.change()?;
        state.synced_names.retain(|path, _| path.parent() != dir);
        let live: Vec<_> = state
            .names
            .iter()
            .filter(|(path, _)| path.parent() == dir)
            .map(|(path, node)| (path.clone(), *node))
            .collect();
        state.synced_names.extend(live);
        Ok(())
    }
}

#[derive(Debug)]
struct Writer {
    files: TestFiles,
    node: usize,
}

impl WritableFile for Writer {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        let mut state = self.files.state();
        state.change()?;
        state.nodes[self.node].bytes.extend_from_slice(data);
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        let mut state = self.files.state();
        state.change()?;
        state.nodes[self.node].synced_len = state.nodes[self.node].bytes.len();
        Ok(())
    }

    fn len(&self) -> u64 {
        self.files.state().nodes[self.node].bytes.len() as u64
    }

    fn reserve(&mut self, _len: u64) -> Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
struct Snapshot {
    path: PathBuf,
    bytes: Bytes,
}

impl RandomFile for Snapshot {
    fn path(&self) -> &Path {
        &self.path
    }

    fn len(&self) -> Result<u64> {
        Ok(self.bytes.len() as u64)
    }

    fn read_at(&self, offset: u64, len: usize) -> Result<Bytes> {
        let (start, end) = (offset as usize, offset as usize + len);
        if end > self.bytes.len() {
            return Err(Error::corruption(self.path.display(), offset, "file is too short"));
        }
        Ok(self.bytes.slice(start..end))
    }

    fn try_read_at(&self, offset: u64, len: usize) -> Option<Result<Bytes>> {
        Some(self.read_at(offset, len))
    }
}
