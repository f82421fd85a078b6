//! What the tests of this folder share: random records, and files in memory.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use proptest::collection::SizeRange;
use proptest::prelude::*;

use super::point::{PointStage, add_loaded};
use super::probe::RowProbe;
use super::{Block, BlockRequest, SstReader, load_blocks_blocking};
use crate::cell::{
    FAMILY_NONE, FamilyId, KeyView, Kind, TIMESTAMP_MAX, encode_family, encode_qualifier,
    encode_row, encode_suffix,
};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{
    DeviceFile, DirEntry, Directory, FileLock, Files, IoEngine, IoMetrics, RandomFile, ReadRequest,
    WritableFile,
};

/// What a point read finds in an SST, its blocks loaded on the spot.
pub(super) fn look_up(reader: &Arc<SstReader>, probe: &RowProbe<'_>) -> Result<PointStage> {
    let load = |wanted: Vec<BlockRequest>| std::future::ready(load_blocks_blocking(wanted));
    look_up_with(reader, probe, load).now_or_never().unwrap()
}

/// The same, its blocks loaded by `load`.
pub(super) async fn look_up_with<L: Future<Output = Vec<Result<Arc<Block>>>>>(
    reader: &Arc<SstReader>,
    probe: &RowProbe<'_>,
    mut load: impl FnMut(Vec<BlockRequest>) -> L,
) -> Result<PointStage> {
    let mut stage = PointStage::Filter;
    let mut loaded = Vec::new();
    loop {
        let mut wanted = Vec::new();
        stage.step(reader, probe, &loaded, &mut wanted)?;
        if wanted.is_empty() {
            return Ok(stage);
        }
        let blocks = load(wanted.clone()).await;
        add_loaded(&mut loaded, wanted, blocks)?;
    }
}

/// Whether a point read finds nothing.
pub(super) fn is_absent(reader: &Arc<SstReader>, probe: &RowProbe<'_>) -> bool {
    matches!(look_up(reader, probe).unwrap(), PointStage::Absent)
}

/// One record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

impl Sample {
    pub(crate) fn view(&self) -> KeyView<'_> {
        KeyView::parse(&self.key).unwrap()
    }
}

fn row() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(b'a'), Just(0xFF)], 0..6),
        2 => "user[0-9]{3}".prop_map(String::into_bytes),
        // One row that gets many records, so that it spans groups and blocks.
        4 => Just(b"wide\0row".to_vec()),
    ]
}

fn qualifier() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(b'q'), Just(0xFF)], 0..4),
        "column-[0-9]{2}".prop_map(String::into_bytes),
    ]
}

fn sample() -> impl Strategy<Value = Sample> {
    let value = prop_oneof![
        8 => prop::collection::vec(any::<u8>(), 0..20),
        1 => (200usize..6000, any::<u8>()).prop_map(|(n, b)| vec![b; n]),
    ];
    let timestamp = prop_oneof![0i64..5, 1_700_000_000_000_000..1_700_000_000_005_000i64];
    (row(), 1u32..4, qualifier(), timestamp, any::<u16>(), 1u8..8, value).prop_map(
        |(row, family, qualifier, timestamp, seq, kind, value)| {
            let kind = Kind::from_u8(kind).unwrap();
            let (family, qualifier, timestamp) = match kind {
                Kind::RowTombstone => (FAMILY_NONE, None, TIMESTAMP_MAX),
                Kind::FamilyTombstone => (FamilyId(family), None, TIMESTAMP_MAX),
                Kind::ColumnTombstone => (FamilyId(family), Some(qualifier), TIMESTAMP_MAX),
                _ => (FamilyId(family), Some(qualifier), timestamp),
            };
            let mut key = Vec::new();
            encode_row(&row, &mut key);
            encode_family(family, &mut key);
            encode_qualifier(qualifier.as_deref(), &mut key);
            encode_suffix(timestamp, (1 << 60) + u64::from(seq), seq % 3, kind, &mut key);
            Sample { key, value }
        },
    )
}

/// Records in key order without duplicates.
pub(crate) fn samples(count: impl Into<SizeRange>) -> impl Strategy<Value = Vec<Sample>> {
    prop::collection::vec(sample(), count).prop_map(|mut all| {
        all.sort_by(|a, b| a.key.cmp(&b.key));
        all.dedup_by(|a, b| a.key == b.key);
        all
    })
}

/// Targets that make a search go wrong if anything does: a key, its prefixes, and strings beside them.
pub(crate) fn keys_around(key: &[u8]) -> Vec<Vec<u8>> {
    let view = KeyView::parse(key).unwrap();
    let mut out = vec![
        Vec::new(),
        key.to_vec(),
        view.row_prefix().to_vec(),
        view.column_prefix().to_vec(),
        key[..view.row_len() + 4].to_vec(),
        key[..key.len() / 2].to_vec(),
    ];
    for i in 0..out.len() {
        let mut after = out[i].clone();
        after.push(0);
        out.push(after);
        let mut last = out[i].clone();
        last.push(0xFF);
        out.push(last);
    }
    out
}

/// Files in memory whose bytes a test may change.
#[derive(Debug, Default)]
pub(crate) struct TestFiles {
    files: Arc<Mutex<BTreeMap<PathBuf, Vec<u8>>>>,
    /// Files opened from now on have nothing in the page cache.
    pub(crate) cold: std::sync::atomic::AtomicBool,
    /// Files are on a device that reads whole units of 4 KiB, and each buffer that was read into holds one of these.
    buffers: Option<Arc<()>>,
}

impl TestFiles {
    /// See [`Self::buffers`]; nothing is in the page cache.
    pub(crate) fn of_a_device(buffers: Arc<()>) -> Self {
        Self { cold: true.into(), buffers: Some(buffers), ..Self::default() }
    }
    pub(crate) fn contents(&self, path: &Path) -> Vec<u8> {
        self.files.lock().unwrap()[path].clone()
    }
    pub(crate) fn put(&self, path: &Path, contents: Vec<u8>) {
        self.files.lock().unwrap().insert(path.to_owned(), contents);
    }
}

#[derive(Debug)]
struct TestWriter {
    files: Arc<Mutex<BTreeMap<PathBuf, Vec<u8>>>>,
    path: PathBuf,
}

impl WritableFile for TestWriter {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.files.lock().unwrap().get_mut(&self.path).unwrap().extend_from_slice(data);
        Ok(())
    }
    fn sync(&mut self) -> Result<()> {
        Ok(())
    }
    fn len(&self) -> u64 {
        self.files.lock().unwrap()[&self.path].len() as u64
    }
    fn reserve(&mut self, _len: u64) -> Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
struct TestFile {
    path: PathBuf,
    contents: Bytes,
    cold: bool,
    device: Option<TestDevice>,
}

/// A device without a file, for what is asked of its units.
#[derive(Debug)]
struct TestDevice {
    /// Any descriptor: nobody reads from it.
    file: std::io::Stderr,
    metrics: IoMetrics,
    buffers: Arc<()>,
}

impl TestDevice {
    fn new(buffers: Arc<()>) -> Self {
        Self { file: std::io::stderr(), metrics: IoMetrics::default(), buffers }
    }
}

/// What was read, with what holds the place of its buffer.
struct TestBuffer(Bytes, #[expect(dead_code, reason = "it counts while it lives")] Arc<()>);

impl AsRef<[u8]> for TestBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl RandomFile for TestFile {
    fn path(&self) -> &Path {
        &self.path
    }
    fn len(&self) -> Result<u64> {
        Ok(self.contents.len() as u64)
    }
    fn read_at(&self, offset: u64, len: usize) -> Result<Bytes> {
        let start = offset as usize;
        if start + len > self.contents.len() {
            return Err(Error::corruption(self.path.display(), offset, "file is too short"));
        }
        let bytes = self.contents.slice(start..start + len);
        Ok(match &self.device {
            Some(device) => Bytes::from_owner(TestBuffer(bytes, Arc::clone(&device.buffers))),
            None => bytes,
        })
    }
    fn device(&self) -> Option<DeviceFile<'_>> {
        self.device.as_ref().map(|device| DeviceFile {
            fd: device.file.as_fd(),
            offset_align: 4096,
            memory_align: 4096,
            metrics: &device.metrics,
        })
    }
    fn try_read_at(&self, offset: u64, len: usize) -> Option<Result<Bytes>> {
        // Half of the reads can be done at once, so that both ways are taken.
        (!self.cold && offset.is_multiple_of(2)).then(|| self.read_at(offset, len))
    }
}

impl Files for TestFiles {
    fn create(&self, path: &Path) -> Result<Box<dyn WritableFile>> {
        self.put(path, Vec::new());
        Ok(Box::new(TestWriter { files: Arc::clone(&self.files), path: path.to_owned() }))
    }
    fn open(&self, path: &Path) -> Result<Arc<dyn RandomFile>> {
        let contents = self.files.lock().unwrap().get(path).cloned();
        let contents = contents.ok_or_else(|| Error::new(ErrorKind::NotFound, "no such file"))?;
        let cold = self.cold.load(std::sync::atomic::Ordering::Relaxed);
        let device = self.buffers.clone().map(TestDevice::new);
        let (path, contents) = (path.to_owned(), Bytes::from(contents));
        Ok(Arc::new(TestFile { path, contents, cold, device }))
    }
    fn truncate(&self, _path: &Path, _len: u64) -> Result<()> {
        unreachable!()
    }
    fn list(&self, _dir: &Path) -> Result<Vec<DirEntry>> {
        unreachable!()
    }
    fn exists(&self, _path: &Path) -> Result<bool> {
        unreachable!()
    }
    fn create_dir_all(&self, _dir: &Path) -> Result<()> {
        unreachable!()
    }
    fn rename(&self, _from: &Path, _to: &Path) -> Result<()> {
        unreachable!()
    }
    fn remove(&self, _path: &Path) -> Result<()> {
        unreachable!()
    }
    fn remove_dir(&self, _dir: &Path) -> Result<()> {
        unreachable!()
    }
    fn open_dir(&self, _dir: &Path) -> Result<Box<dyn Directory>> {
        unreachable!()
    }
    fn lock(&self, _path: &Path) -> Result<Box<dyn FileLock>> {
        unreachable!()
    }
}

/// Reads at once, and counts the reads.
#[derive(Debug, Default)]
pub(crate) struct TestIo {
    pub(crate) reads: std::sync::atomic::AtomicUsize,
}

impl IoEngine for TestIo {
    fn read_batch(&self, requests: Vec<ReadRequest>) -> BoxFuture<'static, Vec<Result<Bytes>>> {
        self.reads.fetch_add(requests.len(), std::sync::atomic::Ordering::Relaxed);
        async move { requests.iter().map(|r| r.file.read_at(r.offset, r.len)).collect() }.boxed()
    }
}

/// A filter partition of about this many bytes, for tests of caches.
pub(crate) fn filter_block(bytes: usize) -> super::Block {
    let form = super::filter::FilterForm {
        kind: super::FilterKind::Bloom,
        bits_per_key: 10,
        partition_bytes: super::PARTITION_UNLIMITED,
    };
    let mut entries = vec![7u64; bytes * 8 / 10];
    let bytes = Bytes::from(form.build(&mut entries, &[], &[]));
    super::Block::parse(super::block::BlockKind::Filter, bytes).unwrap()
}

/// Reads through a gate: a batch waits until the gate has been opened, or fails if it is to. Notes the reads.
#[derive(Debug)]
pub(crate) struct GateIo {
    pub(crate) gate: Arc<tokio::sync::Semaphore>,
    pub(crate) fail: std::sync::atomic::AtomicBool,
    reads: Mutex<Vec<(u64, usize)>>,
}

impl GateIo {
    /// With the gate closed.
    pub(crate) fn new() -> Self {
        Self {
            gate: Arc::new(tokio::sync::Semaphore::new(0)),
            fail: false.into(),
            reads: Mutex::default(),
        }
    }

    pub(crate) fn open(&self) {
        self.gate.add_permits(1_000_000);
    }

    /// Offset and length of the reads so far, sorted.
    pub(crate) fn reads(&self) -> Vec<(u64, usize)> {
        let mut reads = self.reads.lock().unwrap().clone();
        reads.sort_unstable();
        reads
    }
}

impl IoEngine for GateIo {
    fn read_batch(&self, requests: Vec<ReadRequest>) -> BoxFuture<'static, Vec<Result<Bytes>>> {
        self.reads.lock().unwrap().extend(requests.iter().map(|r| (r.offset, r.len)));
        let fails = self.fail.load(std::sync::atomic::Ordering::Relaxed);
        let gate = Arc::clone(&self.gate);
        async move {
            gate.acquire().await.unwrap().forget();
            let failure = || Error::new(ErrorKind::Io, "the device failed");
            let read = |r: &ReadRequest| {
                if fails { Err(failure()) } else { r.file.read_at(r.offset, r.len) }
            };
            requests.iter().map(read).collect()
        }
        .boxed()
    }
}
