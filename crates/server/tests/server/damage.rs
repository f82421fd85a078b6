//! Damaged files: the error that clients get says where, and whatever else there is, is served.

use std::path::Path;

use futures::future::join_all;
use tepui_engine::io::Files as _;
use tepui_server::limits::{CLOSE, DRAIN, THREADS_END};

use super::*;

/// Reads of a row at the same time.
const READS: usize = 20;

/// How many chunks there are of a row.
async fn read(server: &TestServer, key: &'static str) -> Result<usize, tonic::Status> {
    let rows = v2::RowSet { row_keys: vec![Bytes::from(key)], ..Default::default() };
    let request = v2::ReadRowsRequest {
        table_name: TABLE.to_owned(),
        rows: Some(rows),
        ..Default::default()
    };
    let mut stream = server.data().read_rows(request).await?.into_inner();
    let mut chunks = 0;
    while let Some(message) = stream.message().await? {
        chunks += message.chunks.len();
    }
    Ok(chunks)
}

/// A disk with a table of two tablets, one with `early` and one with `late`, and the SST of the first.
async fn written() -> (Env, Arc<MemoryFiles>, std::path::PathBuf) {
    let files = Arc::new(MemoryFiles::new());
    let env = Env { files: Arc::clone(&files) as _, ..memory() };
    let server = start(&env).await;
    server.create(&["m"]).await;
    for key in ["early", "late", "nobody", "zebra"] {
        server.set(key, b"v").await.unwrap();
    }
    server.stop().await;
    let ssts = files.list(Path::new("/tepui/sst")).unwrap();
    let of_row = |path: &std::path::PathBuf| {
        files.contents(path).unwrap().windows(5).any(|part| part == b"early")
    };
    let mut paths = ssts.iter().map(|file| Path::new("/tepui/sst").join(&file.name));
    let path = paths.find(of_row).expect("it was flushed");
    (env, files, path)
}

#[tokio::test]
async fn reads_of_a_damaged_sst_name_the_file_and_the_offset_and_other_tablets_are_served() {
    // Within its first block, and in its footer.
    for from_the_end in [false, true] {
        let (env, files, path) = written().await;
        let mut bytes = files.contents(&path).unwrap();
        let at = if from_the_end { bytes.len() - 20 } else { 3 };
        bytes[at] ^= 4;
        files.put_contents(&path, bytes);
        let server = start(&env).await;
        let name = path.file_name().unwrap().to_str().unwrap();
        let offset = format!("{name}: offset ");
        let reads = join_all((0..READS).map(|_| join_of_two(&server))).await;
        for (damaged, whole) in reads {
            let error = damaged.unwrap_err();
            assert_eq!(error.code(), Code::DataLoss, "{error}");
            let told = error.message().split_once(&offset);
            let (_, told) = told.unwrap_or_else(|| panic!("{error}"));
            assert!(told.starts_with(|digit: char| digit.is_ascii_digit()), "{error}");
            assert_eq!(whole.unwrap(), 1);
        }
        server.stop().await;
    }
}

/// A row of the damaged tablet and one of the other, at the same time.
async fn join_of_two(
    server: &TestServer,
) -> (Result<usize, tonic::Status>, Result<usize, tonic::Status>) {
    tokio::join!(read(server, "early"), read(server, "zebra"))
}

#[tokio::test]
async fn a_stop_does_not_wait_for_a_read_that_the_device_keeps() {
    let (env, _, path) = written().await;
    let (env, faults) = with_faults(&env);
    let server = start(&env).await;
    let (begin, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let (go, stands_still) = std::sync::mpsc::channel::<()>();
    let stands_still = std::sync::Mutex::new(stands_still);
    let hook = move |read: &Path| {
        if read == path {
            begin.send(()).unwrap();
            let _ = stands_still.lock().unwrap().recv();
        }
    };
    faults.before_read(Some(Arc::new(hook)));
    let reading = async {
        let _ = read(&server, "early").await;
        panic!("nothing is read");
    };
    tokio::select! {
        _ = begun.recv() => {}
        () = reading => {}
    }
    let began = tokio::time::Instant::now();
    server.stop().await;
    let took = began.elapsed();
    assert!(took < DRAIN + THREADS_END + CLOSE, "{took:?}");
    // The rest of the server is down, and has let go of the directory.
    faults.before_read(None);
    let next = start(&env).await;
    assert_eq!(read(&next, "zebra").await.unwrap(), 1);
    drop(go);
    next.stop().await;
}
