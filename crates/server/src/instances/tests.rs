//! What instances, clusters and app profiles may be, over a catalog in memory.

use tepui_bigtable::error::Code;
use tepui_engine::io::ManualClock;
use tepui_engine::pressure;

use super::profiles::Access;
use super::*;
use crate::api::admin::app_profile::{
    DataBoostIsolationReadOnly, Isolation, MultiClusterRoutingUseAny, Priority, RoutingPolicy,
    SingleClusterRouting, StandardIsolation,
};
use crate::api::admin::cluster::{ClusterAutoscalingConfig, ClusterConfig, Config};
use crate::api::admin::{AppProfile, AutoscalingLimits, AutoscalingTargets, Cluster};
use crate::catalog::memory_meta::MemoryMeta;

const I: &str = "projects/p/instances/inst";
const C1: &str = "projects/p/instances/inst/clusters/c1";
const PROFILE: &str = "projects/p/instances/inst/appProfiles/a";

fn over(meta: &Arc<MemoryMeta>, is_strict: bool) -> Instances {
    let resources = Resources::open(Arc::<MemoryMeta>::clone(meta)).unwrap();
    Instances::new(Arc::new(resources), Arc::new(ManualClock::new(1_000_000)), is_strict)
}

/// Changes that are commits of their own here; the service commits each with its operation.
impl Instances {
    fn create_now(&self, request: &CreateInstanceRequest) -> Result<Instance> {
        self.resources.change(|change| self.create(change, request))
    }

    fn update_now(
        &self,
        given: &Instance,
        mask: Option<&prost_types::FieldMask>,
    ) -> Result<Instance> {
        self.resources.change(|change| self.update(change, given, mask))
    }

    fn create_cluster_now(
        &self,
        parent: &str,
        id: &str,
        given: Option<&Cluster>,
    ) -> Result<Cluster> {
        self.resources.change(|change| self.create_cluster(change, parent, id, given))
    }

    fn replace_cluster_now(&self, given: &Cluster) -> Result<Cluster> {
        self.resources.change(|change| self.replace_cluster(change, given))
    }

    fn update_cluster_now(
        &self,
        given: &Cluster,
        mask: Option<&prost_types::FieldMask>,
    ) -> Result<Cluster> {
        self.resources.change(|change| self.update_cluster(change, given, mask))
    }

    fn delete_cluster_now(&self, name: &str) -> Result<()> {
        self.resources.change(|change| self.delete_cluster(change, name))
    }

    fn update_profile_now(
        &self,
        given: &AppProfile,
        mask: Option<&prost_types::FieldMask>,
        ignore_warnings: bool,
    ) -> Result<AppProfile> {
        self.resources.change(|change| self.update_profile(change, given, mask, ignore_warnings))
    }
}

fn cluster(nodes: i32) -> Cluster {
    Cluster {
        location: "projects/p/locations/z".to_owned(),
        serve_nodes: nodes,
        ..Cluster::default()
    }
}

fn in_zone_y(cluster: Cluster) -> Cluster {
    Cluster { location: "projects/p/locations/y".to_owned(), ..cluster }
}

fn request() -> CreateInstanceRequest {
    CreateInstanceRequest {
        parent: "projects/p".to_owned(),
        instance_id: "inst".to_owned(),
        instance: Some(Instance { display_name: "d".to_owned(), ..Instance::default() }),
        clusters: [("c1".to_owned(), cluster(1)), ("c2".to_owned(), in_zone_y(cluster(3)))].into(),
    }
}

fn on_hdd(cluster: Cluster) -> Cluster {
    Cluster { default_storage_type: admin::StorageType::Hdd.into(), ..cluster }
}

fn with_instance(change: impl FnOnce(&mut Instance)) -> CreateInstanceRequest {
    let mut request = request();
    change(request.instance.as_mut().unwrap());
    request
}

fn development() -> CreateInstanceRequest {
    let mut request = with_instance(|instance| instance.r#type = 2);
    request.clusters = [("c1".to_owned(), cluster(0))].into();
    request
}

fn mask(paths: &[&str]) -> prost_types::FieldMask {
    prost_types::FieldMask { paths: paths.iter().map(|path| (*path).to_owned()).collect() }
}

fn autoscaled(min: i32, max: i32, cpu: i32, gib: i32) -> Cluster {
    let config = ClusterAutoscalingConfig {
        autoscaling_limits: Some(AutoscalingLimits { min_serve_nodes: min, max_serve_nodes: max }),
        autoscaling_targets: Some(AutoscalingTargets {
            cpu_utilization_percent: cpu,
            storage_utilization_gib_per_node: gib,
        }),
    };
    let config = ClusterConfig { cluster_autoscaling_config: Some(config) };
    Cluster { config: Some(Config::ClusterConfig(config)), ..cluster(0) }
}

fn single(cluster: &str, transactions: bool) -> AppProfile {
    let routing = SingleClusterRouting {
        cluster_id: cluster.to_owned(),
        allow_transactional_writes: transactions,
    };
    AppProfile {
        name: PROFILE.to_owned(),
        routing_policy: Some(RoutingPolicy::SingleClusterRouting(routing)),
        ..AppProfile::default()
    }
}

fn any(clusters: &[&str]) -> AppProfile {
    let routing = MultiClusterRoutingUseAny {
        cluster_ids: clusters.iter().map(|id| (*id).to_owned()).collect(),
        affinity: None,
    };
    let routing_policy = Some(RoutingPolicy::MultiClusterRoutingUseAny(routing));
    AppProfile { name: PROFILE.to_owned(), routing_policy, ..AppProfile::default() }
}

fn boosted(profile: AppProfile) -> AppProfile {
    let boost = DataBoostIsolationReadOnly { compute_billing_owner: Some(1) };
    AppProfile { isolation: Some(Isolation::DataBoostIsolationReadOnly(boost)), ..profile }
}

#[test]
fn an_instance_is_there_with_its_clusters_and_its_default_profile_after_a_restart_too() {
    let meta = Arc::default();
    let created = over(&meta, false).create_now(&request()).unwrap();
    assert_eq!((created.state, created.r#type, created.edition), (1, 1, 1));
    let instances = over(&meta, false);
    assert_eq!(instances.get(I).unwrap(), created);
    assert_eq!(instances.list("projects/p").unwrap(), std::slice::from_ref(&created));
    assert!(instances.list("projects/q").unwrap().is_empty());
    for parent in [I, "projects/p/instances/-"] {
        let nodes: Vec<_> =
            instances.list_clusters(parent).unwrap().iter().map(|c| c.serve_nodes).collect();
        assert_eq!(nodes, [1, 3]);
    }
    let default = instances.get_profile(&format!("{I}/appProfiles/default")).unwrap();
    let Some(RoutingPolicy::SingleClusterRouting(routing)) = default.routing_policy else {
        panic!("{default:?}")
    };
    assert_eq!((routing.cluster_id.as_str(), routing.allow_transactional_writes), ("c1", true));
    assert_eq!(instances.create_now(&request()).unwrap_err().kind(), Code::AlreadyExists);
}

#[test]
fn a_project_has_no_more_instances_than_it_may_and_those_it_had_before_are_read_and_deleted() {
    let meta = Arc::default();
    let instances = over(&meta, false);
    let of = |project: &str, n: usize| {
        let parent = format!("projects/{project}");
        let request =
            CreateInstanceRequest { parent, instance_id: format!("inst-{n}"), ..request() };
        let clusters = [("c".to_owned(), cluster(1))].into();
        CreateInstanceRequest { clusters, ..request }
    };
    for n in 0..INSTANCES_MAX {
        instances.create_now(&of("p", n)).unwrap();
    }
    let again = instances.create_now(&of("p", 0)).unwrap_err();
    assert_eq!(again.kind(), Code::AlreadyExists, "{again}");
    let entries = instances.resources.list::<AppProfile>("", None, usize::MAX).len();
    let refused = instances.create_now(&of("p", INSTANCES_MAX)).unwrap_err();
    assert_eq!(refused.kind(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().contains("delete one"), "{refused}");
    assert_eq!(instances.resources.list::<AppProfile>("", None, usize::MAX).len(), entries);
    instances.create_now(&of("q", 0)).unwrap();

    // As a server has them that knew of no limit.
    let more = format!("projects/p/instances/inst-{INSTANCES_MAX}");
    let instance = Instance { name: more.clone(), ..Instance::default() };
    instances.resources.change(|change| change.create(&more, instance)).unwrap();
    let instances = over(&meta, false);
    assert_eq!(instances.list("projects/p").unwrap().len(), INSTANCES_MAX + 1);
    let all_clusters = instances.list_clusters("projects/p/instances/-").unwrap();
    assert_eq!(all_clusters.len(), INSTANCES_MAX);
    assert_eq!(instances.get(&more).unwrap().name, more);
    let delete = |name: &str| {
        let deleted = instances.resources.change(|change| {
            change.delete_under(name);
            Ok(())
        });
        deleted.unwrap();
    };
    delete(&more);
    instances.create_now(&of("p", INSTANCES_MAX)).unwrap_err();
    delete("projects/p/instances/inst-0");
    instances.create_now(&of("p", 0)).unwrap();
}

#[test]
fn a_bad_instance_is_refused_and_nothing_of_it_is_kept() {
    let meta = Arc::default();
    let instances = over(&meta, false);
    let clusters = |clusters: &[(&str, Cluster)]| {
        let clusters = clusters.iter().map(|(id, c)| ((*id).to_owned(), c.clone())).collect();
        CreateInstanceRequest { clusters, ..request() }
    };
    let label = |key: &str, value: &str| {
        with_instance(|i| i.labels = [(key.to_owned(), value.to_owned())].into())
    };
    let keyed = Cluster {
        encryption_config: Some(admin::cluster::EncryptionConfig { kms_key_name: "k".into() }),
        ..cluster(1)
    };
    let elsewhere = Cluster { location: "z".to_owned(), ..cluster(1) };
    let doubled = Cluster { node_scaling_factor: 2, ..cluster(3) };
    let both = Cluster { serve_nodes: 2, ..autoscaled(1, 3, 50, 0) };
    let bad = Code::InvalidArgument;
    for (what, request, code) in [
        ("parent", CreateInstanceRequest { parent: "p".into(), ..request() }, bad),
        ("instance_id", CreateInstanceRequest { instance_id: "Inst".into(), ..request() }, bad),
        ("instance must", CreateInstanceRequest { instance: None, ..request() }, bad),
        ("display_name", with_instance(|i| i.display_name.clear()), bad),
        ("display_name", with_instance(|i| i.display_name = "x".repeat(129)), bad),
        ("type", with_instance(|i| i.r#type = 9), bad),
        ("edition", with_instance(|i| i.edition = 9), bad),
        (
            "tags",
            with_instance(|i| i.tags = [(String::new(), String::new())].into()),
            Code::Unimplemented,
        ),
        ("labels", label("", "v"), bad),
        ("labels", label("Key", "v"), bad),
        ("labels", label("1", "v"), bad),
        ("labels", label("k", "v w"), bad),
        ("labels", label(&"k".repeat(64), "v"), bad),
        ("clusters", clusters(&[]), bad),
        (
            "DEVELOPMENT",
            CreateInstanceRequest { clusters: request().clusters, ..development() },
            bad,
        ),
        ("cluster_id", clusters(&[("C", cluster(1))]), bad),
        ("location", clusters(&[("c", elsewhere)]), bad),
        ("different zones", clusters(&[("c1", cluster(1)), ("c2", cluster(1))]), bad),
        (
            "on HDD, and all",
            clusters(&[("c1", on_hdd(cluster(1))), ("c2", in_zone_y(cluster(1)))]),
            bad,
        ),
        ("serve_nodes", clusters(&[("c", cluster(-1))]), bad),
        ("steps of 2", clusters(&[("c", doubled)]), bad),
        ("keys of customers", clusters(&[("c", keyed)]), Code::Unimplemented),
        ("only one of", clusters(&[("c", both)]), bad),
        ("autoscaling_limits", clusters(&[("c", autoscaled(0, 3, 50, 0))]), bad),
        ("autoscaling_limits", clusters(&[("c", autoscaled(3, 1, 50, 0))]), bad),
        ("autoscaling_limits", clusters(&[("c", autoscaled(1, 11, 50, 0))]), bad),
        ("cpu_utilization_percent", clusters(&[("c", autoscaled(1, 3, 9, 0))]), bad),
        ("storage_utilization", clusters(&[("c", autoscaled(1, 3, 50, 1))]), bad),
    ] {
        let error = instances.create_now(&request).unwrap_err();
        assert_eq!(error.kind(), code, "{what}: {error}");
        assert!(error.message().contains(what), "{what}: {error}");
    }
    let mut one_bad = request();
    one_bad.clusters.insert("c3".to_owned(), cluster(-1));
    assert!(instances.create_now(&one_bad).is_err());
    for instances in [instances, over(&meta, false)] {
        assert!(instances.list("projects/p").unwrap().is_empty());
        assert!(instances.list_clusters("projects/p/instances/-").unwrap().is_empty());
    }
}

#[test]
fn an_update_of_an_instance_changes_what_its_mask_names_and_no_more() {
    let instances = over(&Arc::default(), false);
    instances.create_now(&with_instance(|i| i.labels = [("k".into(), "v".into())].into())).unwrap();
    let given = Instance {
        name: I.to_owned(),
        display_name: "new".into(),
        edition: 2,
        ..Default::default()
    };
    let changed = instances.update_now(&given, Some(&mask(&["display_name"]))).unwrap();
    assert_eq!(
        (changed.display_name.as_str(), changed.edition, changed.labels.len()),
        ("new", 1, 1)
    );
    let changed = instances.update_now(&given, Some(&mask(&["labels", "edition"]))).unwrap();
    assert_eq!((changed.edition, changed.labels.len()), (2, 0));
    let replaced =
        instances.replace(&Instance { display_name: "r".into(), ..given.clone() }).unwrap();
    assert_eq!((replaced.display_name.as_str(), replaced.edition, replaced.r#type), ("r", 2, 1));

    let named = |name: &str| Instance { name: name.to_owned(), ..given.clone() };
    let develop = Instance { r#type: 2, ..given.clone() };
    let nobody = "projects/p/instances/nobody";
    for (given, paths, code) in [
        (given.clone(), &[][..], Code::InvalidArgument),
        (given.clone(), &["name"], Code::InvalidArgument),
        (given.clone(), &["display_name", "state"], Code::InvalidArgument),
        (develop, &["type"], Code::InvalidArgument),
        (
            Instance { display_name: String::new(), ..given.clone() },
            &["display_name"],
            Code::InvalidArgument,
        ),
        (named("inst"), &["labels"], Code::InvalidArgument),
        (named(nobody), &["labels"], Code::NotFound),
    ] {
        let error = instances.update_now(&given, Some(&mask(paths))).unwrap_err();
        assert_eq!(error.kind(), code, "{paths:?}: {error}");
        assert_eq!(instances.get(I).unwrap(), replaced);
    }
    assert_eq!(instances.update_now(&given, None).unwrap_err().kind(), Code::InvalidArgument);
}

#[test]
fn a_development_instance_has_one_cluster_and_grows_up_once() {
    let instances = over(&Arc::default(), false);
    instances.create_now(&development()).unwrap();
    assert_eq!(instances.get_cluster(C1).unwrap().serve_nodes, 1);
    let second = |id| instances.create_cluster_now(I, id, Some(&in_zone_y(cluster(1))));
    assert_eq!(second("c2").unwrap_err().kind(), Code::FailedPrecondition);
    let untyped = Instance { name: I.to_owned(), ..Instance::default() };
    assert_eq!(instances.update_now(&untyped, Some(&mask(&["type"]))).unwrap().r#type, 2);
    let grown = Instance { name: I.to_owned(), r#type: 1, ..Instance::default() };
    assert_eq!(instances.update_now(&grown, Some(&mask(&["type"]))).unwrap().r#type, 1);
    assert_eq!(instances.update_now(&untyped, Some(&mask(&["type"]))).unwrap().r#type, 1);
    second("c2").unwrap();
}

#[test]
fn clusters_of_an_instance_are_in_different_zones_and_on_one_storage() {
    let instances = over(&Arc::default(), false);
    let clusters = [("c1".to_owned(), on_hdd(cluster(1)))].into();
    instances.create_now(&CreateInstanceRequest { clusters, ..request() }).unwrap();
    let ssd = Cluster { default_storage_type: admin::StorageType::Ssd.into(), ..cluster(1) };
    let create = |cluster| instances.create_cluster_now(I, "c2", Some(&cluster));
    let unknown = in_zone_y(Cluster { default_storage_type: 99, ..cluster(1) });
    for (refused, what) in [
        (on_hdd(cluster(1)), "zones"),
        (cluster(1), "zones"),
        (in_zone_y(ssd), "on HDD, and all"),
        (unknown, "default_storage_type"),
    ] {
        let error = create(refused).unwrap_err();
        assert_eq!(error.kind(), Code::InvalidArgument, "{error}");
        assert!(error.message().contains(what), "{error}");
    }
    // One that leaves it open is on the storage of the others.
    let beside = create(in_zone_y(cluster(1))).unwrap();
    assert_eq!(beside.default_storage_type(), admin::StorageType::Hdd);
}

#[test]
fn a_cluster_is_changed_by_mask_and_autoscaling_is_turned_on_and_off() {
    let instances = over(&Arc::default(), false);
    instances.create_now(&request()).unwrap();
    let update = |given: &Cluster, paths: &[&str]| {
        let given = Cluster { name: C1.to_owned(), ..given.clone() };
        instances.update_cluster_now(&given, Some(&mask(paths)))
    };
    assert_eq!(update(&cluster(4), &["serve_nodes"]).unwrap().serve_nodes, 4);
    let whole = "cluster_config.cluster_autoscaling_config";
    let scaled = update(&autoscaled(5, 8, 50, 0), &[whole]).unwrap();
    assert_eq!(scaled.serve_nodes, 5);
    let max = format!("{whole}.autoscaling_limits.max_serve_nodes");
    let Some(Config::ClusterConfig(config)) =
        update(&autoscaled(0, 9, 0, 0), &[&max]).unwrap().config
    else {
        panic!()
    };
    let config = config.cluster_autoscaling_config.unwrap();
    let limits = config.autoscaling_limits.unwrap();
    assert_eq!((limits.min_serve_nodes, limits.max_serve_nodes), (5, 9));
    assert_eq!(config.autoscaling_targets.unwrap().storage_utilization_gib_per_node, 2_560);

    let replace = |given: Cluster| {
        instances.replace_cluster_now(&Cluster { name: C1.to_owned(), ..given }).unwrap_err().kind()
    };
    assert_eq!(replace(cluster(2)), Code::InvalidArgument);
    let before = instances.get_cluster(C1).unwrap();
    let ignored = update(&cluster(3), &["serve_nodes"]).unwrap();
    assert_eq!((ignored.serve_nodes, ignored.config), (before.serve_nodes, before.config));
    let both = Cluster { serve_nodes: 3, ..autoscaled(5, 8, 50, 0) };
    for (given, paths) in [
        (both, &["serve_nodes", whole][..]),
        (cluster(0), &[]),
        (cluster(1), &["location"]),
        (cluster(1), &["cluster_config.x"]),
        (autoscaled(1, 90, 50, 0), &[whole]),
        (cluster(0), &["cluster_config", "serve_nodes"]),
    ] {
        let error = update(&given, paths).unwrap_err();
        assert_eq!(error.kind(), Code::InvalidArgument, "{paths:?}: {error}");
        assert_eq!(instances.get_cluster(C1).unwrap(), before, "{paths:?}");
    }
    let off = update(&cluster(2), &["serve_nodes", whole]).unwrap();
    assert_eq!((off.serve_nodes, off.config), (2, None));
    assert_eq!(replace(in_zone_y(cluster(2))), Code::InvalidArgument);
    let replaced = Cluster { name: C1.to_owned(), ..cluster(6) };
    assert_eq!(instances.replace_cluster_now(&replaced).unwrap().serve_nodes, 6);
}

#[test]
fn what_is_asked_for_in_an_instance_is_not_made_in_the_next_of_its_name() {
    let clock = ManualClock::new(1_000_000);
    let resources = Arc::new(Resources::open(Arc::<MemoryMeta>::default()).unwrap());
    let instances = Instances::new(resources, Arc::new(clock.clone()), false);
    let nobodys = instances.created(I);
    instances.create_now(&request()).unwrap();
    instances.check_same(I, nobodys).unwrap();
    let asked = instances.created(I);
    instances.check_same(I, asked).unwrap();
    let gone = |change: &mut Change<'_>| {
        change.delete_under(I);
        Ok(())
    };
    instances.resources.change(gone).unwrap();
    assert_eq!(instances.check_same(I, asked).unwrap_err().kind(), Code::Aborted);
    clock.advance_micros(1);
    instances.create_now(&request()).unwrap();
    assert_eq!(instances.check_same(I, asked).unwrap_err().kind(), Code::Aborted);
}

#[test]
fn a_cluster_that_something_needs_is_not_deleted() {
    let instances = over(&Arc::default(), false);
    instances.create_now(&request()).unwrap();
    let c2 = &format!("{I}/clusters/c2");
    let missing = format!("{I}/clusters/c9");
    assert_eq!(instances.delete_cluster_now("c2").unwrap_err().kind(), Code::InvalidArgument);
    assert_eq!(instances.delete_cluster_now(&missing).unwrap_err().kind(), Code::NotFound);
    instances.create_profile(I, "a", Some(&any(&["c2"]))).unwrap();
    let error = instances.delete_cluster_now(c2).unwrap_err();
    assert_eq!(error.kind(), Code::FailedPrecondition);
    assert!(error.message().contains(PROFILE), "{error}");
    instances.delete_profile(PROFILE, true, || Ok(())).unwrap();
    instances.delete_cluster_now(c2).unwrap();
    assert_eq!(instances.delete_cluster_now(C1).unwrap_err().kind(), Code::FailedPrecondition);
    assert_eq!(instances.cluster_ids(I), ["c1"]);
    assert_eq!(instances.cluster_ids("projects/p/instances/nobody"), [IMPLICIT_CLUSTER]);
    let nowhere =
        instances.create_cluster_now("projects/p/instances/nobody", "c", Some(&cluster(1)));
    assert_eq!(nowhere.unwrap_err().kind(), Code::NotFound);
}

#[test]
fn a_profile_has_what_was_left_open_filled_in() {
    let instances = over(&Arc::default(), false);
    instances.create_now(&request()).unwrap();
    let high = Isolation::StandardIsolation(StandardIsolation { priority: Priority::High.into() });
    let created = instances.create_profile(I, "a", Some(&any(&[]))).unwrap();
    assert_eq!(created.isolation, Some(high));
    assert_eq!(instances.get_profile(PROFILE).unwrap(), created);
    #[expect(deprecated, reason = "older clients set the priority in its old place")]
    let old = Isolation::Priority(Priority::Low.into());
    let old = AppProfile { isolation: Some(old), ..single("c1", false) };
    let low = Isolation::StandardIsolation(StandardIsolation { priority: Priority::Low.into() });
    assert_eq!(instances.create_profile(I, "b", Some(&old)).unwrap().isolation, Some(low));
    let names = |parent, after, limit| -> Vec<String> {
        let page = instances.list_profiles(parent, after, limit).unwrap();
        page.iter().map(|profile| names::id_of(&profile.name).to_owned()).collect()
    };
    assert_eq!(names(I, None, 10), ["a", "b", "default"]);
    assert_eq!(names("projects/p/instances/-", Some(PROFILE), 1), ["b"]);
    assert_eq!(instances.list_profiles(I, Some("x"), 1).unwrap_err().kind(), Code::InvalidArgument);
}

#[test]
fn a_bad_profile_is_refused_and_the_one_there_stays() {
    let instances = over(&Arc::default(), false);
    instances.create_now(&request()).unwrap();
    let none = AppProfile { routing_policy: None, ..single("c1", false) };
    let unknown = StandardIsolation { priority: 9 };
    let unknown = AppProfile {
        isolation: Some(Isolation::StandardIsolation(unknown)),
        ..single("c1", false)
    };
    let bad = [
        none,
        single("c9", false),
        any(&["c1", "c9"]),
        unknown,
        boosted(any(&[])),
        boosted(single("c1", true)),
        AppProfile { description: "x".repeat(1_025), ..single("c1", false) },
    ];
    for profile in &bad {
        let error = instances.create_profile(I, "a", Some(profile)).unwrap_err();
        assert_eq!(error.kind(), Code::InvalidArgument, "{error}");
    }
    for (parent, id, code) in [
        ("projects/p/instances/nobody", "a", Code::NotFound),
        ("projects/p", "a", Code::InvalidArgument),
        (I, "a b", Code::InvalidArgument),
        (I, "default", Code::AlreadyExists),
    ] {
        let error = instances.create_profile(parent, id, Some(&any(&[]))).unwrap_err();
        assert_eq!(error.kind(), code, "{parent} {id}: {error}");
    }
    let twice = any(&["c1", "c2", "c1"]);
    let error = instances.create_profile(I, "a", Some(&twice)).unwrap_err();
    assert_eq!(error.kind(), Code::InvalidArgument);
    assert!(error.message().contains("names \"c1\" more than once"), "{error}");
    let many = any(&["c1"; CLUSTERS_MAX + 1]);
    let error = instances.create_profile(I, "a", Some(&many)).unwrap_err();
    assert!(error.message().contains("an instance has at most 32"), "{error}");

    let before = instances.create_profile(I, "a", Some(&single("c1", true))).unwrap();
    let stale = AppProfile { etag: "7".into(), ..single("c1", true) };
    let elsewhere = AppProfile { name: format!("{I}/appProfiles/b"), ..single("c1", true) };
    for (given, paths, code) in [
        (single("c1", true), &[][..], Code::InvalidArgument),
        (single("c1", true), &["name"], Code::InvalidArgument),
        (single("c1", true), &["multi_cluster_routing_use_any"], Code::InvalidArgument),
        (single("c9", true), &["single_cluster_routing"], Code::InvalidArgument),
        (single("c1", true), &["single_cluster_routing.x"], Code::InvalidArgument),
        (stale, &["description"], Code::Aborted),
        (elsewhere, &["description"], Code::NotFound),
        (any(&[]), &["multi_cluster_routing_use_any"], Code::FailedPrecondition),
        (any(&["c1", "c1"]), &["multi_cluster_routing_use_any"], Code::InvalidArgument),
        (
            single("c1", false),
            &["single_cluster_routing.allow_transactional_writes"],
            Code::FailedPrecondition,
        ),
    ] {
        let error = instances.update_profile_now(&given, Some(&mask(paths)), false).unwrap_err();
        assert_eq!(error.kind(), code, "{paths:?}: {error}");
        assert_eq!(instances.get_profile(PROFILE).unwrap(), before);
    }
    assert_eq!(
        instances.delete_profile(PROFILE, false, || Ok(())).unwrap_err().kind(),
        Code::FailedPrecondition
    );
    let default = format!("{I}/appProfiles/default");
    assert_eq!(
        instances.delete_profile(&default, true, || Ok(())).unwrap_err().kind(),
        Code::FailedPrecondition
    );
    let path = mask(&["multi_cluster_routing_use_any"]);
    let changed = instances.update_profile_now(&any(&[]), Some(&path), true).unwrap();
    assert_eq!(changed.routing_policy, any(&[]).routing_policy);
}

#[test]
fn requests_are_allowed_what_their_profile_allows() {
    use Access::{Read, Transaction, Write};
    let instances = over(&Arc::default(), false);
    let table = format!("{I}/tables/t");
    for access in [Read, Write, Transaction] {
        instances.allow(&table, "anything", access).unwrap();
    }
    instances.create_now(&request()).unwrap();
    instances.create_profile(I, "any", Some(&any(&[]))).unwrap();
    instances.create_profile(I, "boost", Some(&boosted(single("c1", false)))).unwrap();
    let ranked = |profile| instances.allow(&table, profile, Read).unwrap();
    assert_eq!(
        (ranked("any"), ranked("boost")),
        (pressure::Priority::High, pressure::Priority::Low)
    );
    let code = |profile, access| instances.allow(&table, profile, access).err().map(|e| e.kind());
    for (profile, read, write, transaction) in [
        ("", None, None, None),
        ("default", None, None, None),
        ("any", None, None, Some(Code::FailedPrecondition)),
        ("boost", None, Some(Code::FailedPrecondition), Some(Code::FailedPrecondition)),
        ("nobody", Some(Code::NotFound), Some(Code::NotFound), Some(Code::NotFound)),
    ] {
        assert_eq!(code(profile, Read), read, "{profile}");
        assert_eq!(code(profile, Write), write, "{profile}");
        assert_eq!(code(profile, Transaction), transaction, "{profile}");
    }
    let default = AppProfile { name: format!("{I}/appProfiles/default"), ..any(&[]) };
    let path = mask(&["multi_cluster_routing_use_any"]);
    instances.update_profile_now(&default, Some(&path), true).unwrap();
    assert_eq!(code("", Transaction), Some(Code::FailedPrecondition));
}

#[test]
fn where_it_is_strict_there_are_only_instances_that_were_created() {
    let instances = over(&Arc::default(), true);
    let table = format!("{I}/tables/t");
    assert_eq!(instances.check(I).unwrap_err().kind(), Code::NotFound);
    assert_eq!(instances.allow(&table, "", Access::Read).unwrap_err().kind(), Code::NotFound);
    instances.create_now(&request()).unwrap();
    instances.check(I).unwrap();
    instances.allow(&table, "", Access::Read).unwrap();
}

#[test]
fn the_header_of_a_request_is_that_of_the_cluster_that_its_profile_routes_to_and_costs_nothing_again()
 {
    use crate::api::v2::ResponseParams;
    use prost::Message as _;
    use tonic::metadata::BinaryMetadataValue;
    let instances = over(&Arc::default(), false);
    let table = format!("{I}/tables/t");
    let told = |profile: &str| {
        let header = instances.location(&table, profile).to_bytes().unwrap();
        let params = ResponseParams::decode(header).unwrap();
        (params.cluster_id().to_owned(), params.zone_id().to_owned())
    };
    let is = |profile: &str, cluster: &str, zone: &str| {
        assert_eq!(told(profile), (cluster.to_owned(), zone.to_owned()), "{profile}");
        // The same bytes in memory: nothing was allocated for the second.
        let [one, two] = [(); 2].map(|()| instances.location(&table, profile));
        let at = |header: &BinaryMetadataValue| header.as_encoded_bytes().as_ptr();
        assert_eq!(at(&one), at(&two), "{profile}");
    };
    is("", IMPLICIT_CLUSTER, IMPLICIT_ZONE);
    instances.create_now(&request()).unwrap();
    for profile in ["", "default", "nobody"] {
        is(profile, "c1", "z");
    }
    instances.create_profile(I, "a", Some(&single("c2", false))).unwrap();
    instances.create_profile(I, "b", Some(&any(&[]))).unwrap();
    is("a", "c2", "y");
    is("b", "c1", "z");
    instances.create_profile(I, "group", Some(&any(&["c2", "c1"]))).unwrap();
    is("group", "c2", "y");
    instances.delete_profile(&format!("{I}/appProfiles/group"), true, || Ok(())).unwrap();
    let path = mask(&["single_cluster_routing"]);
    instances.update_profile_now(&single("c1", false), Some(&path), true).unwrap();
    is("a", "c1", "z");
    let default = AppProfile { name: format!("{I}/appProfiles/default"), ..single("c2", true) };
    instances.update_profile_now(&default, Some(&path), true).unwrap();
    is("", "c2", "y");
    instances.delete_cluster_now(C1).unwrap_err();
    instances.delete_profile(PROFILE, true, || Ok(())).unwrap();
    instances.delete_cluster_now(C1).unwrap();
    is("b", "c2", "y");
}

#[test]
fn a_change_makes_the_routes_of_its_instance_anew_and_requests_make_none() {
    let meta = Arc::default();
    let instances = over(&meta, false);
    let other = "projects/p/instances/other";
    for id in ["inst", "other"] {
        let instance_id = id.to_owned();
        instances.create_now(&CreateInstanceRequest { instance_id, ..request() }).unwrap();
    }
    let at = |instance: &str| {
        let profiles: *const _ = instances.routes().of(instance).unwrap();
        profiles
    };
    let before = [at(I), at(other)];
    instances.create_profile(I, "a", Some(&single("c1", false))).unwrap();
    let made = Arc::clone(&instances.routes());
    let table = format!("{I}/tables/t");
    assert_eq!(&*instances.cluster(&table, "a"), "c1");
    instances.allow(&table, "a", Access::Read).unwrap();
    assert!(Arc::ptr_eq(&made, &instances.routes()));
    assert!(at(I) != before[0] && at(other) == before[1]);
    let reopened = over(&meta, false);
    assert_eq!(&*reopened.cluster(&table, "a"), "c1");
    let delete = |change: &mut Change<'_>| {
        change.delete_under(other);
        Ok(())
    };
    instances.resources.change(delete).unwrap();
    assert!(instances.routes().of(other).is_none() && instances.routes().of(I).is_some());
}

#[test]
fn what_a_mask_names_often_is_changed_once() {
    let often: Vec<_> = std::iter::repeat_n(["labels", "type"], 50_000).flatten().collect();
    assert_eq!(mask_paths(Some(&mask(&often))).unwrap(), ["labels", "type"]);
    let last = mask(&["a", "a.b", "a"]);
    assert_eq!(mask_paths(Some(&last)).unwrap(), ["a.b", "a"], "the whole comes last");
    for none in [None, Some(&mask(&[]))] {
        assert_eq!(mask_paths(none).unwrap_err().kind(), Code::InvalidArgument);
    }
}

#[test]
fn of_many_tables_the_operation_that_creates_a_cluster_tells_nothing() {
    let sizes =
        |count: usize| (0..count).map(|i| (format!("{I}/tables/{i:050}"), i as u64)).skip(1);
    let few = clusters::copied(sizes(1_000));
    assert_eq!(few.len(), 999);
    assert!(few.values().all(|table| table.estimated_size_bytes > 0));
    assert!(clusters::copied(sizes(50_000)).is_empty());
}
