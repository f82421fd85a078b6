//! The whole server, from opening the data to closing it.
//!
//! ```text
//! start:  open the engine ─► open the catalog (tablets get their schemas) ─► remove tablets that no table
//!         or entry names ─► start background work, resume operations ─► bind the sockets ─► start the cores and the chores
//! stop:   health checks say NOT_SERVING ─► cores stop accepting and drain (5 s), and end; those that the device keeps are left
//!         behind ─► the engine flushes and closes (4 s)
//! ```

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use tepui_bigtable::error::{Error, Result};
use tepui_engine::db::{Engine, Health, OpenSummary};
use tepui_engine::io::{Clock, Env, JoinHandle};
use tepui_engine::limits::CLOCK_DOUBT;
use tokio::sync::watch;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::HealthReporter;

use crate::admission::{Gate, Gated, Streams, Ungated};
use crate::backups::Backups;
use crate::bundles::Bundles;
use crate::catalog::authorized_views::AuthorizedViews;
use crate::catalog::host::EngineHost;
use crate::catalog::resources::Resources;
use crate::change_streams::ChangeStreams;
use crate::chores::{self, Chores};
use crate::config::Config;
use crate::dispatch::{Dispatch, Others, Places};
use crate::grpc;
use crate::health::Watched;
use crate::hot_tablets::HotTablets;
use crate::iam::policies::Policies;
use crate::instances::Instances;
use crate::large::{self, Helper};
use crate::limits::{
    ADMIN_REQUEST_BYTES_MAX, BLOCKING_THREADS_MAX, CHANGE_STREAM_BYTES, CHANGE_STREAMS_PART,
    CLOCK_AHEAD_MAX, CLOCK_BEHIND_MAX, CLOSE, DRAIN, REQUEST_MESSAGE_BYTES_MAX, SWEEP_THREADS_MAX,
    THREADS_END, UNGATED_MESSAGE_BYTES_MAX,
};
use crate::listener;
use crate::metrics::collect::Sources;
use crate::metrics::endpoint;
use crate::metrics::rpc::{CoreRpcs, Recorder};
use crate::open_files;
use crate::operations::Operations;
use crate::placement::{Connections, Door};
use crate::runtime::{self, Alive, Ended, Serves};
use crate::services::{
    DataService, Iam, InstanceAdminService, OperationsService, TableAdminService, Tables, timestamp,
};
use crate::workers::{self, Workers};

/// Threads of a core that carry out requests: its own, and its helpers.
const THREADS_EACH: usize = 3;

/// The file descriptors of everything served, for reflection; see `scripts/descriptors.py`.
pub(crate) const DESCRIPTORS: &[u8] = include_bytes!("../descriptors.bin");

/// A server that is running. Dropping it stops it too, without waiting.
pub struct Running {
    address: SocketAddr,
    metrics_address: Option<SocketAddr>,
    env: Env,
    engine: Arc<Engine>,
    operations: Arc<Operations>,
    stop: watch::Sender<bool>,
    threads: Vec<Thread>,
    /// Who do what blocks in requests.
    workers: Arc<Workers>,
    /// Given when the first of these threads ends.
    ended: runtime::Signal,
}

/// One of its threads.
struct Thread {
    name: String,
    handle: Box<dyn JoinHandle>,
    end: Ended,
}

/// Starts a server by its configuration. Blocks until it accepts connections.
pub fn start(env: Env, config: &Config) -> Result<Running> {
    let address = listen_address(config)?;
    // Before anything is changed for a server that nobody could reach.
    for address in [Some(address), config.metrics_listen].into_iter().flatten() {
        listener::check(address).map_err(|error| cannot_listen(address, &error))?;
    }
    let options = config.engine.clone();
    let catalog = &crate::catalog::entry_of;
    let engine = Engine::open_with_catalog(env.clone(), &config.data, options, catalog)?;
    let found = engine.open_summary();
    tell_opening(found);
    if let Some(newest) = found.newest_micros {
        let now = env.clock.now_micros();
        let doubt = Doubt::of(newest, now);
        doubt.tell(newest, now);
        if config.keep_expired {
            tracing::info!(
                "server.keep_expired is set: backups, deleted tables, changes and cells whose time is over stay for {} minutes",
                CLOCK_DOUBT.as_secs() / 60
            );
        }
        if doubt == Doubt::Ahead || config.keep_expired {
            engine.doubt_clock(CLOCK_DOUBT);
        }
    }
    start_over(env, engine, address, config)
}

fn cannot_listen(address: SocketAddr, error: &std::io::Error) -> Error {
    Error::unavailable(format!("cannot listen on {address}: {error}"))
}

/// What speaks against the wall clock at a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doubt {
    None,
    /// It is [`CLOCK_AHEAD_MAX`] ahead of the newest sequence on disk.
    Ahead,
    /// It is [`CLOCK_BEHIND_MAX`] behind.
    Behind,
}

impl Doubt {
    fn of(newest_micros: i64, now_micros: i64) -> Self {
        let ahead = i128::from(now_micros) - i128::from(newest_micros);
        if ahead > CLOCK_AHEAD_MAX.as_micros() as i128 {
            Self::Ahead
        } else if -ahead > CLOCK_BEHIND_MAX.as_micros() as i128 {
            Self::Behind
        } else {
            Self::None
        }
    }

    fn tell(self, newest_micros: i64, now_micros: i64) {
        let (newest, now) = (timestamp(newest_micros), timestamp(now_micros));
        match self {
            Self::None => {}
            Self::Ahead => tracing::error!(
                %now,
                %newest,
                "the clock is more than {} days ahead of the newest write: unless nothing was written for so long, it is wrong, and \
                 what it says has expired is deleted; backups, deleted tables, changes and cells wait for {} minutes",
                CLOCK_AHEAD_MAX.as_secs() / (24 * 3600),
                CLOCK_DOUBT.as_secs() / 60,
            ),
            Self::Behind => tracing::error!(
                %now,
                %newest,
                "the clock is behind the newest write: it is wrong, or was wrong before; new cells get timestamps before older ones",
            ),
        }
    }
}

/// Tells what the last server left behind, where it left anything.
fn tell_opening(found: &OpenSummary) {
    if let Some(torn) = &found.torn_tail {
        tracing::warn!("cut off a record of the log that was being written at a crash: {torn}");
    }
    if found.replayed_records > 0 || found.orphans_removed > 0 {
        tracing::info!(
            "replayed {} records from {} bytes of log; removed {} files that nothing names",
            found.replayed_records,
            found.replayed_bytes,
            found.orphans_removed,
        );
    }
}

/// Starts a server over an engine that is open and whose background work has not started.
fn start_over(
    env: Env,
    engine: Arc<Engine>,
    address: SocketAddr,
    config: &Config,
) -> Result<Running> {
    let host = EngineHost::new(Arc::clone(&engine), Arc::clone(&env.rng), config.styles.clone());
    let (clock, rng) = (engine.clock(), Arc::clone(&env.rng));
    let resources = Arc::new(Resources::open(engine.meta())?);
    let operations = Arc::new(Operations::open(Arc::clone(&resources), Arc::clone(&clock)));
    let is_strict = config.strict_instances;
    let instances = Instances::new(Arc::clone(&resources), Arc::clone(&clock), is_strict);
    let instances = Arc::new(instances);
    let views = Arc::new(AuthorizedViews::new(Arc::clone(&resources)));
    let tables = Arc::new(Tables::open(host, engine.meta(), Arc::clone(&clock), rng)?);
    engine.retain_tablets(&tables.tablet_ids())?;
    let bundles = Bundles::new(Arc::clone(&resources));
    let policies = Policies::new(Arc::clone(&resources));
    let iam = Iam::new(
        Arc::clone(&tables),
        Arc::clone(&views),
        Arc::clone(&instances),
        bundles.clone(),
        policies.clone(),
    );
    let backups = Arc::new(Backups::open(
        env.clone(),
        Arc::clone(&engine),
        Arc::clone(&tables),
        Arc::clone(&instances),
        resources,
        Arc::clone(&operations),
    )?);
    engine.start()?;
    backups.resume()?;
    operations.abort_interrupted();

    let listeners = listener::bind(address, config.core_count())
        .map_err(|error| cannot_listen(address, &error))?;
    let metrics = match config.metrics_listen {
        None => None,
        Some(address) => {
            Some(endpoint::bind(address).map_err(|error| cannot_listen(address, &error))?)
        }
    };
    let metrics_address = metrics.as_ref().and_then(|listener| listener.local_addr().ok());
    let address = listeners
        .first()
        .and_then(|listener| listener.local_addr().ok())
        .ok_or_else(|| Error::internal("no core to listen on"))?;

    let health = HealthReporter::new();
    let message_bytes_max = REQUEST_MESSAGE_BYTES_MAX as u64;
    let gate = Arc::new(Gate::new(
        config.budget.requests_bytes,
        config.budget.decoded_bytes,
        message_bytes_max,
    ));
    let streams = Arc::new(Streams::within(config.budget.answers_bytes));
    let windows = runtime::Windows::within(config.budget.requests_bytes);
    let mut cores = Vec::new();
    let (stop, stopped) = watch::channel(false);
    let (drain, draining) = watch::channel(false);
    let (one_ended, ended) = watch::channel(false);
    let cannot_run = |error| Error::internal(format!("cannot start a thread's runtime: {error}"));
    let change_streams_max =
        config.budget.requests_bytes / CHANGE_STREAMS_PART / CHANGE_STREAM_BYTES;
    let change_streams_max = usize::try_from(change_streams_max).unwrap_or(usize::MAX >> 4);
    let changes = ChangeStreams::new(
        Arc::clone(&tables),
        Arc::clone(&clock),
        change_streams_max,
        draining.clone(),
    );
    let changes = Arc::new(changes);
    // Told before the first connection is served: who asks as soon as the server listens gets an answer.
    let told = engine.health();
    pollster::block_on(chores::tell(&health, &told));
    let mut threads = Vec::new();
    let workers_max = BLOCKING_THREADS_MAX * listeners.len();
    let workers = Workers::start(Arc::clone(&env.spawner), "tepui-work", workers_max)?;
    let workers = Arc::new(workers);
    let sweepers = Workers::start(Arc::clone(&env.spawner), "tepui-sweep", SWEEP_THREADS_MAX)?;
    let hot_tablets = Arc::new(HotTablets::new(listeners.len(), THREADS_EACH));
    let connections_max = open_files::connections_max(open_files::max(), config.budget.total_bytes);
    let connections = Connections::new(connections_max);
    let places = Places::default();
    let cores_count = listeners.len();
    let doors = Door::all(cores_count, &connections);
    for (i, (listener, door)) in listeners.into_iter().zip(doors).enumerate() {
        let core = Arc::new(CoreRpcs::default());
        cores.push(Arc::clone(&core));
        let serving = Serving {
            tables: &tables,
            instances: &instances,
            hot_tablets: &hot_tablets,
            backups: &backups,
            views: &views,
            operations: &operations,
            bundles: &bundles,
            iam: &iam,
            health: &health,
            clock: &clock,
            gate: &gate,
            streams: &streams,
            draining: &draining,
            changes: &changes,
            places: &places,
        };
        let services = serving.services(core)?;
        let draining = draining.clone();
        let (io, streams) = (Arc::clone(&env.io), Arc::clone(&streams));
        let mut working = hot_tablets.threads().iter().skip(i * THREADS_EACH).map(Arc::clone);
        let mut working = || working.next().unwrap_or_default();
        let runtime = runtime::build_core().map_err(cannot_run)?;
        let workers = Arc::clone(&workers);
        let core = runtime::Core { services, streams, windows, door, working: working() };
        let mut help = |name: String, slow: Option<&Helper>| {
            let (alive, end) = Alive::new(&one_ended);
            let spawner = env.spawner.as_ref();
            let (helper, handle) = Helper::start(spawner, &name, working(), alive, slow)?;
            threads.push(Thread { name, handle, end });
            Ok::<_, Error>(helper)
        };
        let slow = help(format!("tepui-slow-{i}"), None)?;
        let helper = help(format!("tepui-large-{i}"), Some(&slow))?;
        let (alive, end) = Alive::new(&one_ended);
        let work = move || {
            let _alive = alive;
            let _lent = (workers::lend(workers), large::lend(helper, slow));
            core.run(runtime, listener, draining, io.as_ref());
        };
        let name = format!("tepui-core-{i}");
        let handle = env.spawner.spawn_core(&name, (i, cores_count), Box::new(work))?;
        threads.push(Thread { name, handle, end });
    }
    let memory_bytes = config.budget.total_bytes;
    let sources = Sources {
        engine: Arc::clone(&engine),
        cores,
        gate,
        streams,
        connections,
        backups: Arc::clone(&backups),
        memory_bytes,
    };
    let chores = Chores {
        sources,
        metrics,
        tables,
        views,
        bundles,
        policies,
        backups,
        hot_tablets,
        health,
        told,
        sweepers,
        stop: stopped,
        drain,
    };
    let runtime = runtime::build().map_err(cannot_run)?;
    let (alive, end) = Alive::new(&one_ended);
    let work = move || {
        let _alive = alive;
        chores::run(chores, runtime);
    };
    let name = "tepui-chores".to_owned();
    let handle = env.spawner.spawn(&name, Box::new(work))?;
    threads.push(Thread { name, handle, end });
    Ok(Running { address, metrics_address, env, engine, operations, stop, threads, workers, ended })
}

impl Running {
    /// Where it listens; the port is the real one where port 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it serves metrics, if it does.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// The engine underneath.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Given when the server does not serve any more though nobody has stopped it: a thread of it has failed. It is to be stopped then,
    /// and the process to end.
    pub fn ended(&self) -> runtime::Signal {
        self.ended.clone()
    }

    /// Stops it in order, as far as the device lets it. Blocks, for at most [`DRAIN`], [`THREADS_END`] and [`CLOSE`].
    pub fn stop(self) -> Result<()> {
        tracing::info!("shutting down");
        // A read that the device keeps may have a thread of these, too, which the end of the last of them would wait for.
        std::mem::forget(Arc::clone(&self.env.io));
        // Nobody listening means that the chores are gone, and the cores with them.
        let _ = self.stop.send(true);
        end_of(self.threads, self.env.clock.as_ref());
        // What has begun goes on to its end, or to that of the engine.
        self.workers.end(Duration::ZERO);
        let (done, closed) = mpsc::channel();
        let (engine, operations) = (Arc::clone(&self.engine), Arc::clone(&self.operations));
        let close = move || {
            // What clients were told has ended is not to be taken for interrupted by the next start.
            operations.write_ends();
            // Whoever waited may be gone by now, at the deadline.
            let _ = done.send(engine.close());
        };
        self.env.spawner.spawn("tepui-close", Box::new(close))?;
        match closed.recv_timeout(CLOSE) {
            Ok(result) => Ok(result?),
            Err(RecvTimeoutError::Timeout) => {
                if let Health::ReadOnly(reason) = self.engine.health() {
                    return Err(Error::unavailable(reason));
                }
                tracing::warn!("the engine is still flushing; what is left is in the log");
                Ok(())
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(Error::internal("the engine panicked as it closed; what it said is on stderr"))
            }
        }
    }
}

/// Waits for threads that were told to end. Those that do not end in time are left behind.
fn end_of(threads: Vec<Thread>, clock: &dyn Clock) {
    let wait = DRAIN + THREADS_END;
    let began = clock.monotonic_micros();
    let mut left = Vec::new();
    for Thread { name, handle, end } in threads {
        let waited = Duration::from_micros(clock.monotonic_micros().saturating_sub(began));
        if end.wait(wait.saturating_sub(waited)) {
            handle.join();
        } else {
            left.push(name);
        }
    }
    if !left.is_empty() {
        let threads = left.join(", ");
        tracing::error!(
            threads,
            "left threads behind that have not ended: the device keeps a read, or their work takes long"
        );
    }
}

/// The address to listen on, the first of those that a name has. Without credentials or encryption, only this machine may be served
/// unless the operator says otherwise.
fn listen_address(config: &Config) -> Result<SocketAddr> {
    let bad =
        |what: String| Error::invalid_argument(format!("listen = {:?}: {what}", config.listen));
    let mut resolved = config.listen.to_socket_addrs().map_err(|error| {
        bad(format!("it must be HOST:PORT with a host that can be resolved: {error}"))
    })?;
    let address = resolved.next().ok_or_else(|| bad("the host has no address".to_owned()))?;
    config.check_reach(address.ip()).map_err(Error::failed_precondition)?;
    config.check_metrics(address).map_err(Error::invalid_argument)?;
    if let Some(warning) = only_first(&config.listen, address, resolved) {
        tracing::warn!("{warning}");
    }
    Ok(address)
}

/// What to warn of where a name has other addresses than the one that is listened on.
fn only_first(
    listen: &str,
    address: SocketAddr,
    resolved: impl Iterator<Item = SocketAddr>,
) -> Option<String> {
    let mut others = resolved.filter(|other| *other != address);
    let mut text = format!(
        "listen = {listen:?} has several addresses: {address} is listened on, as the first of them, and not {}",
        others.next()?
    );
    for other in others {
        text = format!("{text}, {other}");
    }
    Some(text)
}

/// What the services of all cores share.
struct Serving<'a> {
    tables: &'a Arc<Tables>,
    instances: &'a Arc<Instances>,
    views: &'a Arc<AuthorizedViews>,
    hot_tablets: &'a Arc<HotTablets>,
    operations: &'a Arc<Operations>,
    backups: &'a Arc<Backups>,
    bundles: &'a Bundles,
    iam: &'a Iam,
    health: &'a HealthReporter,
    clock: &'a Arc<dyn Clock>,
    gate: &'a Arc<Gate>,
    streams: &'a Arc<Streams>,
    draining: &'a runtime::Signal,
    changes: &'a Arc<ChangeStreams>,
    places: &'a Places,
}

impl Serving<'_> {
    /// The services of one core, which count into `core`.
    fn services(&self, core: Arc<CoreRpcs>) -> Result<impl Serves + use<>> {
        let clock = || Arc::clone(self.clock);
        let recorder = Recorder::new(core, clock());
        let tables = || Arc::clone(self.tables);
        let instances = || Arc::clone(self.instances);
        let operations = || Arc::clone(self.operations);
        let views = || Arc::clone(self.views);
        let streams = Arc::clone(self.streams);
        let changes = Arc::clone(self.changes);
        let data = DataService::new(
            tables(),
            views(),
            instances(),
            streams,
            changes,
            clock(),
            recorder.clone(),
        );
        let table_admin = TableAdminService {
            tables: tables(),
            views: views(),
            instances: instances(),
            operations: operations(),
            backups: Arc::clone(self.backups),
            bundles: self.bundles.clone(),
            iam: self.iam.clone(),
            clock: clock(),
            recorder: recorder.clone(),
        };
        let instance_admin = InstanceAdminService {
            instances: instances(),
            tables: tables(),
            views: views(),
            operations: operations(),
            hot_tablets: Arc::clone(self.hot_tablets),
            iam: self.iam.clone(),
            clock: clock(),
            recorder: recorder.clone(),
        };
        let longrunning =
            OperationsService::new(operations(), self.draining.clone(), recorder.clone());
        let health = Watched::new(self.health, self.draining.clone());
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(DESCRIPTORS)
        };
        let bad = |error| Error::internal(format!("descriptors for reflection: {error}"));
        let v1 = reflection().build_v1().map_err(bad)?;
        let v1alpha = reflection().build_v1alpha().map_err(bad)?;
        let bytes_max = UNGATED_MESSAGE_BYTES_MAX;
        let others = Routes::new(HealthServer::new(health).max_decoding_message_size(bytes_max))
            .add_service(v1.max_decoding_message_size(bytes_max))
            .add_service(v1alpha.max_decoding_message_size(bytes_max));
        let admin_max = ADMIN_REQUEST_BYTES_MAX;
        let others = Others::new(others).with_places(self.places);
        let services = Ungated::new(others, self.draining.clone());
        let services = Dispatch::new(self.gated(longrunning, admin_max, &recorder), services);
        let services = Dispatch::new(self.gated(instance_admin, admin_max, &recorder), services);
        let services = Dispatch::new(self.gated(table_admin, admin_max, &recorder), services);
        let data = self.gated(data, REQUEST_MESSAGE_BYTES_MAX, &recorder);
        Ok(Dispatch::new(data, services))
    }

    fn gated<S>(&self, service: S, bytes_max: usize, to: &Recorder) -> Gated<grpc::Server<S>> {
        Gated::new(grpc::Server::new(service), Arc::clone(self.gate), bytes_max, to.rpcs())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tepui_bigtable::error::Code;
    use tepui_engine::cell::{FamilyId, Mutation, RowBatch, RowRange};
    use tepui_engine::db::EngineOptions;
    use tepui_engine::io::{Files, InlineIo, ManualClock, MemoryFiles, SeededRng, ThreadSpawner};
    use tepui_engine::manifest::{MetaChange, MetaExpect};
    use tepui_engine::schema::{FamilyOptions, TabletSchema};

    use super::*;
    use crate::catalog::record::TableRecord;

    fn env_of(files: &Arc<MemoryFiles>) -> Env {
        Env {
            files: Arc::<MemoryFiles>::clone(files),
            io: Arc::new(InlineIo),
            clock: Arc::new(ManualClock::new(1_767_225_600_000_000)),
            rng: Arc::new(SeededRng::new(1)),
            spawner: Arc::new(ThreadSpawner),
        }
    }

    /// A table with an SST, and the directory of its one tablet.
    fn with_table(env: &Env) -> std::path::PathBuf {
        let options = EngineOptions { background: false, ..EngineOptions::default() };
        let engine = Engine::open(env.clone(), Path::new("/data"), options).unwrap();
        let tablet = engine.create_tablet(RowRange::all()).unwrap();
        let record = TableRecord {
            name: "projects/p/instances/i/tables/t".to_owned(),
            tablets: vec![tablet.id().0],
            ..TableRecord::default()
        };
        let change = MetaChange {
            key: format!("tables/{}", record.name),
            expect: MetaExpect::Absent,
            value: Some(record.encode_versioned().into()),
        };
        engine.meta().commit(&[change]).unwrap();
        let put = Mutation::Put {
            family: FamilyId(1),
            qualifier: "q".into(),
            timestamp: 1000,
            value: "value".into(),
        };
        let families = [(FamilyId(1), FamilyOptions::default())].into_iter().collect();
        tablet.set_schema(Arc::new(TabletSchema { families }));
        let batch = RowBatch { row: "row".into(), mutations: vec![put] };
        pollster::block_on(tablet.apply(batch)).unwrap();
        engine.close().unwrap();
        Path::new("/data/tablets").join(format!("{:016x}", tablet.id().0))
    }

    /// Why a server does not start there, which leaves all data where it is.
    fn refused_start(files: &Arc<MemoryFiles>) -> Error {
        let left = || {
            ["sst", "tablets", "log"]
                .map(|part| files.list(&Path::new("/data").join(part)).unwrap())
        };
        let before = left();
        assert!(before.iter().all(|part| !part.is_empty()), "{before:?}");
        let listen = "127.0.0.1:0".to_owned();
        let config = Config { data: "/data".into(), listen, ..Config::default() };
        let error = start(env_of(files), &config).err().expect("it does not start");
        assert_eq!(left(), before, "{error}");
        error
    }

    #[test]
    fn a_server_that_lost_its_catalog_or_a_manifest_does_not_start_and_removes_nothing() {
        for lost in ["meta", "manifest"] {
            let files = Arc::new(MemoryFiles::new());
            let tablet = with_table(&env_of(&files));
            let dir = if lost == "meta" { Path::new("/data/meta") } else { &tablet };
            for entry in files.list(dir).unwrap() {
                files.remove(&dir.join(entry.name)).unwrap();
            }
            let error = refused_start(&files);
            assert_eq!(error.kind(), Code::DataLoss, "{lost}: {error}");
            assert!(error.message().contains(dir.to_str().unwrap()), "{lost}: {error}");
        }
    }

    #[test]
    fn a_server_that_knows_nothing_of_what_a_newer_one_keeps_does_not_start_and_removes_nothing() {
        let files = Arc::new(MemoryFiles::new());
        let env = env_of(&files);
        let tablet = with_table(&env);
        let options = EngineOptions { background: false, ..EngineOptions::default() };
        let engine = Engine::open(env, Path::new("/data"), options).unwrap();
        // The tablet is now of something else than a table.
        let meta = engine.meta();
        let (key, entry) = meta.list("tables/").unwrap().remove(0);
        let removed = MetaChange { key, expect: MetaExpect::Any, value: None };
        let value = Some(entry.value);
        let made = MetaChange { key: "teapots/t".to_owned(), expect: MetaExpect::Absent, value };
        meta.commit(&[removed, made]).unwrap();
        engine.close().unwrap();
        drop((meta, engine));
        let error = refused_start(&files);
        assert!(error.message().contains("teapots/t"), "{error}");
        assert!(error.message().contains("a newer server wrote it"), "{error}");
        assert!(!files.list(&tablet).unwrap().is_empty());
    }

    fn listening_on(listen: &str, allow_remote_plaintext: bool) -> Result<SocketAddr> {
        let config =
            Config { listen: listen.to_owned(), allow_remote_plaintext, ..Config::default() };
        listen_address(&config)
    }

    #[test]
    fn other_machines_are_served_only_where_the_operator_says_so() {
        assert_eq!(listening_on("127.0.0.1:8086", false).unwrap().port(), 8086);
        assert!(listening_on("[::1]:0", false).is_ok());
        let error = listening_on("0.0.0.0:8086", false).unwrap_err();
        assert!(error.message().contains("server.allow_remote_plaintext"), "{error}");
        assert!(listening_on("0.0.0.0:8086", true).is_ok());
    }

    #[test]
    fn metrics_on_the_address_that_a_name_stands_for_are_refused_before_anything_is_opened() {
        let listen = "localhost:8086";
        let named = listening_on(listen, false).unwrap();
        for metrics in [named, "[::]:8086".parse().unwrap()] {
            let config = Config {
                data: "/data".into(),
                listen: listen.to_owned(),
                metrics_listen: Some(metrics),
                ..Config::default()
            };
            let files = Arc::new(MemoryFiles::new());
            let error = start(env_of(&files), &config).err().expect("it does not start");
            let text = error.message();
            assert!(text.contains(listen) && text.contains("are one address"), "{text}");
            assert!(!files.exists(Path::new("/data")).unwrap());
        }
    }

    #[test]
    fn addresses_of_a_name_that_nobody_listens_on_are_warned_of() {
        let [first, second, third]: [SocketAddr; 3] =
            ["[::1]:9", "127.0.0.1:9", "192.0.2.1:9"].map(|a| a.parse().unwrap());
        assert_eq!(only_first("db:9", first, [].into_iter()), None);
        assert_eq!(only_first("db:9", first, [first].into_iter()), None, "it stands there twice");
        let warning = only_first("db:9", first, [second, first, third].into_iter()).unwrap();
        assert!(
            warning.contains("db:9") && warning.contains("[::1]:9 is listened on"),
            "{warning}"
        );
        assert!(warning.ends_with("not 127.0.0.1:9, 192.0.2.1:9"), "{warning}");
    }

    #[test]
    fn a_clock_that_is_far_from_the_newest_write_is_doubted() {
        let newest = 1_767_225_600_000_000;
        let (minute, day) = (60_000_000, 86_400_000_000);
        for (now, doubt) in [
            (newest, Doubt::None),
            (newest + 30 * day, Doubt::None),
            (newest + 30 * day + 1, Doubt::Ahead),
            (i64::MAX, Doubt::Ahead),
            (newest - minute, Doubt::None),
            (newest - minute - 1, Doubt::Behind),
            (0, Doubt::Behind),
        ] {
            assert_eq!(Doubt::of(newest, now), doubt, "{now}");
        }
    }

    #[test]
    fn a_bad_address_is_named() {
        for bad in ["", "8086", "127.0.0.1", "127.0.0.1:notaport"] {
            let error = listening_on(bad, true).unwrap_err();
            assert!(error.message().starts_with(&format!("listen = {bad:?}")), "{error}");
        }
    }

    /// What reflection does not describe: RPCs that are not served, of which the table knows the names alone.
    const NOT_DESCRIBED: [&str; 6] = [
        "OpenTable",
        "OpenAuthorizedView",
        "OpenMaterializedView",
        "GetMemoryLayer",
        "ListMemoryLayers",
        "UpdateMemoryLayer",
    ];

    #[test]
    fn reflection_describes_every_rpc_that_has_messages() {
        use crate::rpcs::{Rpc, SERVICES};
        use prost::Message as _;
        use std::collections::BTreeSet;
        let set = prost_types::FileDescriptorSet::decode(DESCRIPTORS).unwrap();
        let messages: BTreeSet<_> = set
            .file
            .iter()
            .flat_map(|f| f.message_type.iter().map(|m| format!(".{}.{}", f.package(), m.name())))
            .collect();
        for service in SERVICES {
            let found = set
                .file
                .iter()
                .filter(|file| file.package() == service.package)
                .flat_map(|file| &file.service)
                .find(|s| s.name() == service.name)
                .unwrap_or_else(|| panic!("{} is not described", service.name));
            let described: Vec<_> = found.method.iter().map(|m| m.name()).collect();
            let (left_out, expected): (Vec<&Rpc>, Vec<&Rpc>) =
                service.rpcs.iter().partition(|rpc| NOT_DESCRIBED.contains(&rpc.name));
            assert!(left_out.iter().all(|rpc| !rpc.supported), "{left_out:?}");
            assert_eq!(described, expected.iter().map(|rpc| rpc.name).collect::<Vec<_>>());
            for (rpc, method) in expected.into_iter().zip(&found.method) {
                for (path, full) in
                    [(rpc.input, method.input_type()), (rpc.output, method.output_type())]
                {
                    assert_eq!(path.rsplit("::").next(), full.rsplit('.').next(), "{}", rpc.name);
                    assert!(messages.contains(full), "{full} of {} is not described", rpc.name);
                }
                assert_eq!(rpc.streams, method.server_streaming(), "{}", rpc.name);
            }
        }
    }
}
