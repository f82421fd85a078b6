//! What a server does beside its requests, on a thread of its own: it tells health checks how the engine
//! is, suspends reads whose clients have stalled, serves metrics, sweeps tables whose time to be undeleted is over, their
//! views, schema bundles and policies, and backups that have expired, makes automated backups, and begins the shutdown.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use tepui_engine::db::Health;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::backups::Backups;
use crate::bundles::Bundles;
use crate::catalog::authorized_views::AuthorizedViews;
use crate::hot_tablets::HotTablets;
use crate::iam::policies::Policies;
use crate::limits::{
    BACKUP_SWEEP_INTERVAL, DRAIN, HEALTH_INTERVAL, REFUSED_CONNECTIONS_INTERVAL, RELIEF_INTERVAL,
    SWEEP_INTERVAL,
};
use crate::metrics::collect::Sources;
use crate::metrics::endpoint;
use crate::rpcs;
use crate::runtime::{self, Signal};
use crate::services::Tables;
use crate::workers::Workers;

/// What the chores work on.
pub struct Chores {
    /// Whose health is told, whose stalled reads are suspended, and whose figures are served.
    pub sources: Sources,
    /// Where they are served, if they are.
    pub metrics: Option<TcpListener>,
    /// Whose deleted tables are swept.
    pub tables: Arc<Tables>,
    /// Which expire, and which policies ask for.
    pub backups: Arc<Backups>,
    /// Of which those of tables that are gone are swept.
    pub views: Arc<AuthorizedViews>,
    /// Which are looked for at what the cores work for.
    pub hot_tablets: Arc<HotTablets>,
    /// Swept as views are.
    pub bundles: Bundles,
    /// The same.
    pub policies: Policies,
    /// Where health is told.
    pub health: HealthReporter,
    /// What was told there last.
    pub told: Health,
    /// Who sweep.
    pub sweepers: Workers,
    /// Given by whoever stops the server.
    pub stop: Signal,
    /// Given to the cores once health checks know that the server is going.
    pub drain: watch::Sender<bool>,
}

/// Does the chores until the server stops; then tells health checks, then the cores. Where it ends otherwise the cores see the end
/// of `drain` and stop, too: a server whose end cannot be ordered must not run.
pub fn run(chores: Chores, runtime: Runtime) {
    let sweepers = runtime.block_on(chores.run());
    // A sweep that is stuck must not keep the server from stopping: it goes on where it was at the next start.
    sweepers.end(DRAIN);
}

impl Chores {
    /// Until the server stops; then gives the sweepers back, which may be at work.
    async fn run(mut self) -> Workers {
        let metrics = self.metrics.take();
        let endpoint = async {
            if let Some(listener) = metrics {
                endpoint::serve(listener, &self.sources).await;
            }
            std::future::pending::<()>().await;
        };
        // Each goes its own way: a sweep may take long, and neither the others nor the end wait for it.
        tokio::select! {
            () = runtime::given(self.stop.clone()) => {}
            () = self.look_after() => {}
            () = self.tell_refused_connections() => {}
            () = self.sweep_tables() => {}
            () = self.sweep_backups() => {}
            () = endpoint => {}
        }
        set_all(&self.health, ServingStatus::NotServing).await;
        // Nobody listening means that the cores are gone already.
        let _ = self.drain.send(true);
        self.sweepers
    }

    /// Looks at the engine's health, at stalled reads and at what the cores work for, from time to time and for ever.
    async fn look_after(&self) {
        let mut relief_tick = interval(RELIEF_INTERVAL);
        let mut health_tick = interval(HEALTH_INTERVAL);
        let mut told = self.told.clone();
        loop {
            tokio::select! {
                _ = health_tick.tick() => {
                    let now = self.sources.engine.health();
                    // Figures in the reason may differ from try to try.
                    if !told.is_like(&now) {
                        if let (Health::Held { .. }, Health::Serving) = (&told, &now) {
                            tracing::info!("the engine takes writes again");
                        }
                        tell(&self.health, &now).await;
                        told = now;
                    }
                }
                _ = relief_tick.tick() => {
                    let Sources { engine, streams, gate, .. } = &self.sources;
                    let short = engine.lacks_what_reads_hold();
                    streams.relieve(engine.clock().monotonic_micros(), short, gate);
                    self.hot_tablets.look(engine.clock().now_micros());
                }
            }
        }
    }

    /// Says how many connections could not be served, from time to time and for ever.
    async fn tell_refused_connections(&self) {
        let mut tick = interval(REFUSED_CONNECTIONS_INTERVAL);
        let connections = &self.sources.connections;
        let mut before = connections.figures();
        loop {
            tick.tick().await;
            let now = connections.figures();
            let (refused, not_accepted) =
                (now.refused - before.refused, now.not_accepted - before.not_accepted);
            if refused > 0 {
                tracing::warn!(
                    "closed {refused} connections as they came in: there may be {} of them, half of the open files, since files of data \
                     need descriptors, too, and 32 KiB of a sixteenth of the memory each; raise the limit of open files, or `memory`, to serve more",
                    connections.max(),
                );
            }
            if not_accepted > 0 {
                tracing::warn!(
                    "could not accept connections {not_accepted} times: the system had no descriptor or memory for them"
                );
            }
            before = now;
        }
    }

    /// Sweeps tables whose time is over and what belonged to tables that are gone, for ever; not while the clock is in doubt.
    async fn sweep_tables(&self) {
        let mut tick = interval(SWEEP_INTERVAL);
        loop {
            tick.tick().await;
            let Some(now) = self.sources.engine.believed_micros() else { continue };
            let (tables, views) = (Arc::clone(&self.tables), Arc::clone(&self.views));
            let (bundles, policies) = (self.bundles.clone(), self.policies.clone());
            let sweep = move || {
                tables.sweep(now);
                if let Err(error) = views.sweep(|name| tables.incarnation(name)) {
                    tracing::warn!(%error, "cannot remove the authorized views of tables that are gone");
                }
                if let Err(error) = bundles.sweep(|name| tables.incarnation(name)) {
                    tracing::warn!(%error, "cannot remove the schema bundles of tables that are gone");
                }
                if let Err(error) = policies.sweep(|name| tables.incarnation(name)) {
                    tracing::warn!(%error, "cannot remove the policies of tables that are gone");
                }
            };
            // A panic in it is on stderr; the next sweep tries again.
            let _ = self.sweepers.run(sweep).await;
        }
    }

    /// Does what time asks for of backups, for ever.
    async fn sweep_backups(&self) {
        let mut tick = interval(BACKUP_SWEEP_INTERVAL);
        loop {
            tick.tick().await;
            let backups = Arc::clone(&self.backups);
            let _ = self.sweepers.run(move || backups.sweep()).await;
        }
    }
}

/// Ticks at once and then at intervals; what was missed is not made up for.
fn interval(period: Duration) -> Interval {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// Tells health checks how the engine is.
pub async fn tell(reporter: &HealthReporter, health: &Health) {
    match health {
        Health::Serving => set_all(reporter, ServingStatus::Serving).await,
        Health::ReadOnly(reason) => {
            tracing::error!(reason, "the engine is read-only until it is restarted");
            set_all(reporter, ServingStatus::NotServing).await;
        }
        Health::Held { reason, .. } => {
            tracing::error!(reason, "the engine takes no writes for now");
            set_all(reporter, ServingStatus::NotServing).await;
        }
    }
}

/// Sets the status of the server as a whole (the empty name) and of each service.
async fn set_all(reporter: &HealthReporter, status: ServingStatus) {
    reporter.set_service_status("", status).await;
    for service in rpcs::SERVICES {
        let name = format!("{}.{}", service.package, service.name);
        reporter.set_service_status(name, status).await;
    }
}
