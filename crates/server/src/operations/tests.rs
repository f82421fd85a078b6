//! Operations over a catalog in memory, with a clock that stands still until it is moved.

use std::time::Duration;

use super::*;

use crate::catalog::memory_meta::MemoryMeta;
use tepui_engine::io::ManualClock;
use tepui_engine::manifest::MetaStore as _;

const RESOURCE: &str = "projects/p/instances/i/tables/t";

fn over(meta: &Arc<MemoryMeta>) -> Arc<Operations> {
    by_clock(meta, &Arc::new(ManualClock::new(1_000)))
}

fn by_clock(meta: &Arc<MemoryMeta>, clock: &Arc<ManualClock>) -> Arc<Operations> {
    let resources = Resources::open(Arc::<MemoryMeta>::clone(meta)).unwrap();
    Arc::new(Operations::open(Arc::new(resources), Arc::<ManualClock>::clone(clock)))
}

fn operations() -> Arc<Operations> {
    over(&Arc::default())
}

fn finish(operations: &Operations) -> Operation {
    operations.finished(RESOURCE, ("a.Metadata", &()), ("a.Response", &())).unwrap()
}

fn told(text: &str) -> Any {
    Any { type_url: text.to_owned(), value: Vec::new() }
}

fn code_of(operation: Operation) -> i32 {
    match operation.result {
        Some(operation::Result::Error(status)) => status.code,
        other => panic!("no error: {other:?}"),
    }
}

#[test]
fn a_finished_operation_is_done_and_found_by_name_after_a_restart_too() {
    let meta = Arc::default();
    let operation = finish(&over(&meta));
    assert!(operation.done);
    let operations = over(&meta);
    assert_eq!(operations.get(&operation.name).unwrap(), operation);
    assert_ne!(finish(&operations).name, operation.name);
    let Some(operation::Result::Response(any)) = operation.result else { panic!() };
    assert_eq!(any.type_url, "type.googleapis.com/a.Response");
    operations.delete(&operation.name).unwrap();
    assert!(operations.get(&operation.name).is_err());
    assert!(operations.delete(&operation.name).is_err());
}

#[test]
fn an_operation_under_way_tells_its_progress_and_is_not_deleted() {
    let operations = operations();
    let handle = operations.start(RESOURCE, told("begun")).unwrap();
    handle.progress(told("half"));
    let seen = operations.get(handle.name()).unwrap();
    assert_eq!((seen.done, seen.metadata), (false, Some(told("half"))));
    assert_eq!(operations.list("", 0, 10)[0].1, handle.operation().unwrap());
    let error = operations.delete(handle.name()).unwrap_err();
    assert_eq!(error.kind(), Code::FailedPrecondition);
    let done = handle.finish(Ok(told("result"))).unwrap();
    assert_eq!(done.metadata, Some(told("half")));
    assert_eq!(done.result, Some(operation::Result::Response(told("result"))));
    assert_eq!(operations.get(&done.name).unwrap(), done);
    assert!(operations.interrupted().is_empty());
}

#[test]
fn an_interrupted_operation_is_resumed_or_ends_as_aborted() {
    let meta = Arc::default();
    let first = over(&meta);
    let names = ["a", "b"].map(|text| {
        let handle = first.start(RESOURCE, told(text)).unwrap();
        let name = handle.name().to_owned();
        handle.leave();
        name
    });
    let second = over(&meta);
    let left: Vec<_> = second.interrupted().into_iter().map(|o| o.name).collect();
    assert_eq!(left, names);
    let resumed = second.resume(&names[0]).unwrap();
    assert!(second.resume(&names[0]).is_err(), "it is resumed already");
    second.abort_interrupted();
    assert_eq!(code_of(second.get(&names[1]).unwrap()), i32::from(tonic::Code::Aborted));
    assert!(!resumed.operation().unwrap().done);
    resumed.finish(Ok(told("result"))).unwrap();
    let third = over(&meta);
    assert!(third.interrupted().is_empty());
    assert!(third.get(&names[0]).unwrap().done);
}

#[test]
fn an_end_that_is_one_commit_with_what_was_made_is_told_once_that_can_be_seen() {
    let meta = Arc::<MemoryMeta>::default();
    let operations = over(&meta);
    let handle = operations.start(RESOURCE, told("begun")).unwrap();
    let name = handle.name().to_owned();
    let end = |change: &mut Change<'_>| handle.end_within(change, told("end"), told("result"));
    meta.disk_is_full.store(true, std::sync::atomic::Ordering::Relaxed);
    operations.resources.change(end).unwrap_err();
    meta.disk_is_full.store(false, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(over(&meta).interrupted().len(), 1);
    operations.resources.change(end).unwrap();
    assert!(!operations.get(&name).unwrap().done);
    operations.cancel(&name).unwrap();
    let mut change = operations.resources.begin();
    operations.abort_within(&mut change, "projects/p/instances/i").unwrap();
    change.commit(Vec::new()).unwrap();
    // Whatever becomes of its thread, and though the disk takes nothing more.
    meta.disk_is_full.store(true, std::sync::atomic::Ordering::Relaxed);
    drop(handle);
    let done = operations.get(&name).unwrap();
    assert!(done.done);
    assert_eq!(done.metadata, Some(told("end")));
    assert_eq!(done.result, Some(operation::Result::Response(told("result"))));
    assert_eq!(over(&meta).get(&name).unwrap(), done);
}

#[test]
fn an_operation_that_is_given_up_ends_as_aborted() {
    let operations = operations();
    let handle = operations.start(RESOURCE, told("begun")).unwrap();
    let name = handle.name().to_owned();
    drop(handle);
    assert_eq!(code_of(operations.get(&name).unwrap()), i32::from(tonic::Code::Aborted));
}

#[tokio::test]
async fn who_waits_is_told_of_the_end_and_of_nothing_before() {
    let operations = operations();
    let handle = operations.start(RESOURCE, told("begun")).unwrap();
    let other = operations.start(RESOURCE, told("other")).unwrap();
    let name = handle.name().to_owned();
    let mut waiting = std::pin::pin!(operations.wait(&name));
    assert!(futures::poll!(&mut waiting).is_pending());
    other.finish(Ok(told("result"))).unwrap();
    assert!(futures::poll!(&mut waiting).is_pending());
    let done = handle.finish(Err(Error::not_found("gone"))).unwrap();
    assert_eq!(waiting.await.unwrap(), done);
    assert_eq!(code_of(done), i32::from(tonic::Code::NotFound));
    assert_eq!(operations.wait("operations/x/1").await.unwrap_err().kind(), Code::NotFound);
}

#[test]
fn a_change_and_its_operation_are_there_together_or_not_at_all() {
    let meta = Arc::<MemoryMeta>::default();
    let operations = over(&meta);
    let make = |change: &mut Change<'_>| {
        change.create("a", crate::api::instances::Instance::default())?;
        Ok(Finished::new(RESOURCE, ("a.Metadata", &()), ("a.Response", &())))
    };
    meta.fails.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(operations.change(make).is_err());
    meta.fails.store(false, std::sync::atomic::Ordering::Relaxed);
    assert!(meta.list("").unwrap().is_empty() && operations.list("", 0, 10).is_empty());
    operations.change(make).unwrap();
    assert_eq!(operations.change(make).unwrap_err().kind(), Code::AlreadyExists);
    let there = meta.list("").unwrap();
    assert_eq!(there.len(), 2, "the refused one left no operation");
    assert!(there.iter().all(|(_, entry)| entry.revision == 1), "one commit");

    let refuse = |_: &mut Change<'_>| Err(Error::failed_precondition("no"));
    assert!(operations.start_with(RESOURCE, told("begun"), refuse).is_err());
    assert_eq!(meta.list("").unwrap().len(), 2);
    assert!(operations.lock().running.is_empty());
}

#[test]
fn operations_with_large_results_are_forgotten_before_they_fill_the_catalog() {
    let operations = operations();
    let large = prost_types::Any { value: vec![7; 4 << 20], ..Default::default() };
    let handle = operations.start(RESOURCE, told("under way")).unwrap();
    let names: Vec<_> = (0..8)
        .map(|_| {
            let done = operations.finished(RESOURCE, ("a.Metadata", &()), ("a.Response", &large));
            done.unwrap().name
        })
        .collect();
    let kept: Vec<_> = names.iter().filter(|name| operations.get(name).is_ok()).collect();
    assert_eq!(kept, names[5..].iter().collect::<Vec<_>>());
    assert!(!handle.operation().unwrap().done, "what is under way stays");
    finish(&operations);
    assert!(operations.get(&names[7]).is_ok());
}

#[test]
fn operations_are_listed_by_the_whole_name_of_their_resource() {
    let operations = operations();
    let of = |instance: &str| {
        let resource = format!("projects/p/instances/{instance}");
        operations.finished(&resource, ("a.Metadata", &()), ("a.Response", &())).unwrap().name
    };
    let (one, two) = (of("i"), of("i2"));
    let list = |name: &str| -> Vec<_> {
        operations.list(name, 0, 10).into_iter().map(|(_, operation)| operation.name).collect()
    };
    for name in ["operations/projects/p/instances/i", "operations/projects/p/instances/i/", &one] {
        assert_eq!(list(name), [one.as_str()], "{name}");
    }
    for name in ["", "operations", "operations/projects/p"] {
        assert_eq!(list(name), [one.as_str(), &two], "{name}");
    }
    assert!(list("operations/projects/p/instances/").len() == 2);
    assert!(list("operations/projects/q").is_empty());
}

#[test]
fn no_more_operations_are_copied_than_are_asked_for() {
    let operations = operations();
    for _ in 0..5 {
        finish(&operations);
    }
    let looked_at = std::cell::Cell::new(0);
    let listed = operations.list_where("", 0, |_| {
        looked_at.set(looked_at.get() + 1);
        true
    });
    assert_eq!(listed.take(2).count(), 2);
    assert_eq!(looked_at.get(), 2);
}

#[test]
fn ids_rise_while_the_clock_stands_still() {
    let operations = operations();
    let names: Vec<_> = (0..3).map(|_| finish(&operations).name).collect();
    let listed: Vec<_> =
        operations.list("operations/projects/p/", 0, 10).into_iter().map(|o| o.1.name).collect();
    assert_eq!(listed, names);
    let (first, _) = operations.list("", 0, 1).remove(0);
    assert_eq!(operations.list("", first, 10).len(), 2);
    assert!(operations.list("operations/projects/q/", 0, 10).is_empty());
}

#[test]
fn the_oldest_operation_that_is_done_is_forgotten_first() {
    let operations = operations();
    let running = operations.start(RESOURCE, told("begun")).unwrap();
    let first = finish(&operations);
    for _ in 0..OPERATIONS_MAX - 1 {
        finish(&operations);
    }
    assert!(operations.get(&first.name).is_err());
    assert!(!running.operation().unwrap().done);
    assert_eq!(operations.list("", 0, usize::MAX).len(), OPERATIONS_MAX);
}

#[test]
fn an_operation_that_began_long_ago_is_there_when_its_client_asks_for_its_end() {
    let clock = Arc::new(ManualClock::new(1_000));
    let operations = by_clock(&Arc::default(), &clock);
    let slow = operations.start(RESOURCE, told("begun")).unwrap();
    let flood = || {
        for _ in 0..=OPERATIONS_MAX {
            finish(&operations);
        }
    };
    flood();
    let slow = slow.finish(Ok(told("result"))).unwrap().name;
    flood();
    assert!(operations.get(&slow).unwrap().done);
    clock.advance_micros(OPERATION_KEPT.as_micros() as u64 + 1);
    flood();
    assert!(operations.get(&slow).is_err());
}

#[test]
fn where_clients_may_ask_for_all_operations_no_more_are_taken_for_a_while() {
    let clock = Arc::new(ManualClock::new(1_000));
    let operations = by_clock(&Arc::default(), &clock);
    let begin = || operations.start(RESOURCE, told("begun"));
    for _ in 0..OPERATIONS_MAX {
        begin().unwrap().finish(Ok(told("result"))).unwrap();
    }
    let error = begin().unwrap_err();
    assert_eq!(error.kind(), Code::ResourceExhausted, "{error}");
    assert!(error.retry_after().is_some());
    let (id, first) = operations.list("", 0, 1).remove(0);
    operations.delete(&first.name).unwrap();
    begin().unwrap().finish(Ok(told("result"))).unwrap();
    clock.advance_micros(OPERATION_KEPT.as_micros() as u64 + 1);
    begin().unwrap();
    assert!(operations.list("", 0, 1)[0].0 > id);
}

#[test]
fn operations_whose_end_was_answered_or_that_no_client_knows_of_make_room_for_others() {
    let operations = operations();
    let begin = || operations.start(RESOURCE, told("begun"));
    let waited_for = begin().unwrap().finish(Ok(told("result"))).unwrap().name;
    for n in 0..=OPERATIONS_MAX {
        let handle = begin().unwrap();
        let name = handle.name().to_owned();
        if n % 2 == 0 {
            // Of the server's own.
            operations.nobody_asks_about(&name);
            handle.finish(Ok(told("result"))).unwrap();
        } else {
            handle.finish(Ok(told("result"))).unwrap();
            operations.nobody_asks_about(&name);
        }
    }
    begin().unwrap();
    assert!(operations.get(&waited_for).unwrap().done, "its client asks for its end");
    let state = operations.lock();
    assert!(state.unasked.is_empty() && state.ended.len() == 2, "{state:?}");
}

#[test]
fn one_that_nobody_asks_about_stays_until_its_end_is_seen() {
    let operations = operations();
    let handle = operations.start(RESOURCE, told("begun")).unwrap();
    operations.nobody_asks_about(handle.name());
    let end = |change: &mut Change<'_>| handle.end_within(change, told("end"), told("result"));
    operations.resources.change(end).unwrap();
    for _ in 0..=OPERATIONS_MAX {
        finish(&operations);
    }
    let name = handle.name().to_owned();
    assert!(handle.finish(Ok(told("result"))).unwrap().done);
    finish(&operations);
    assert!(operations.get(&name).is_err());
}

#[test]
fn an_end_that_cannot_be_kept_at_a_start_waits_for_the_next() {
    let meta = Arc::default();
    over(&meta).start(RESOURCE, told("begun")).unwrap().leave();
    let second = over(&meta);
    meta.fails.store(true, std::sync::atomic::Ordering::Relaxed);
    second.abort_interrupted();
    meta.fails.store(false, std::sync::atomic::Ordering::Relaxed);
    let third = over(&meta);
    assert_eq!(third.interrupted().len(), 1);
    third.abort_interrupted();
    assert!(third.interrupted().is_empty());
}

#[test]
fn an_end_that_the_catalog_has_no_room_for_is_told_and_written_once_it_has() {
    use std::sync::atomic::Ordering::Relaxed;
    let meta: Arc<MemoryMeta> = Arc::default();
    let operations = over(&meta);
    let [first, second] = [(); 2].map(|()| operations.start(RESOURCE, told("begun")).unwrap());
    let (name, deleted) = (first.name().to_owned(), second.name().to_owned());
    meta.disk_is_full.store(true, Relaxed);
    assert!(first.finish(Ok(told("made"))).is_err());
    assert!(second.finish(Ok(told("made"))).is_err());
    let ended = operations.get(&name).unwrap();
    assert!(ended.done && ended.result == Some(operation::Result::Response(told("made"))));
    assert!(operations.interrupted().is_empty());
    let listed = |done: bool| operations.list_where("", 0, |o| o.done == done).count();
    assert_eq!((listed(true), listed(false)), (2, 0));
    operations.write_ends();
    assert_eq!(over(&meta).interrupted().len(), 2, "there is no room yet");

    operations.delete(&deleted).unwrap();
    meta.disk_is_full.store(false, Relaxed);
    assert!(operations.get(&deleted).is_err());
    operations.write_ends();
    assert_eq!(over(&meta).get(&name).unwrap(), ended);
    assert_eq!(operations.get(&name).unwrap(), ended);
    assert!(operations.get(&deleted).is_err(), "it does not come back");
}

#[test]
fn one_that_failed_on_a_full_disk_is_not_taken_for_interrupted_by_the_next_start() {
    use std::sync::atomic::Ordering::Relaxed;
    let meta: Arc<MemoryMeta> = Arc::default();
    let operations = over(&meta);
    let begun = |_| operations.start(RESOURCE, told("begun")).unwrap();
    let [first, second, third] = [0, 1, 2].map(begun);
    let names = [&first, &second, &third].map(|handle| handle.name().to_owned());
    meta.disk_is_full.store(true, Relaxed);
    let no_room = || Err(Error::overloaded("no space is left", Duration::from_secs(1)));
    assert!(first.finish(no_room()).is_err());
    assert!(second.finish(no_room()).is_err());
    let ended = operations.get(&names[0]).unwrap();
    assert!(ended.done && matches!(ended.result, Some(operation::Result::Error(_))));
    let listed = |operations: &Operations| {
        let all = operations.list("", 0, 10).into_iter();
        all.map(|(_, operation)| (operation.name, operation.done)).collect::<Vec<_>>()
    };
    let [a, b, c] = names.clone();
    assert_eq!(listed(&operations), [(a.clone(), true), (b.clone(), true), (c.clone(), false)]);
    let later = over(&meta).interrupted().into_iter().map(|operation| operation.name);
    assert_eq!(later.collect::<Vec<_>>(), std::slice::from_ref(&c));

    operations.delete(&b).unwrap();
    assert!(operations.delete(&b).is_err() && operations.get(&b).is_err());
    meta.disk_is_full.store(false, Relaxed);
    operations.write_ends();
    assert_eq!(over(&meta).get(&a).unwrap(), ended);
    assert_eq!(listed(&operations), [(a, true), (c, false)]);
}

#[test]
fn a_name_of_another_resource_with_the_same_id_is_not_found() {
    let operations = operations();
    let operation = finish(&operations);
    let other = operation.name.replace("/tables/t/", "/tables/u/");
    assert!(operations.get(&other).is_err());
    assert!(operations.delete(&other).is_err());
}

#[test]
fn an_operation_that_cannot_be_kept_is_not_started() {
    let meta: Arc<MemoryMeta> = Arc::default();
    let operations = over(&meta);
    meta.fails.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(operations.start(RESOURCE, told("begun")).is_err());
    assert!(operations.list("", 0, 10).is_empty());
}

#[test]
fn what_takes_no_room_is_done_in_a_full_catalog_and_its_operation_is_not_kept() {
    use crate::api::instances::Instance;
    let meta: Arc<MemoryMeta> = Arc::default();
    let operations = over(&meta);
    let told = || Ok(Finished::new(RESOURCE, ("a.Metadata", &()), ("a.Response", &())));
    let create = |name: &str| {
        operations.change(|change| {
            change.create(
                name,
                Instance { display_name: "as made".to_owned(), ..Instance::default() },
            )?;
            told()
        })
    };
    create("a").unwrap();
    meta.is_full.store(true, std::sync::atomic::Ordering::Relaxed);
    let changed = operations.change(|change| {
        change.update::<Instance>("a", |instance| {
            instance.display_name = "changed".to_owned();
            Ok(())
        })?;
        told()
    });
    let changed = changed.unwrap();
    assert!(changed.done && changed.result.is_some());
    assert_eq!(operations.get(&changed.name).unwrap_err().kind(), Code::NotFound);
    let again = over(&meta);
    for operations in [&operations, &again] {
        let name = &operations.resources.find::<Instance>("a").unwrap().value.display_name;
        assert_eq!(name, "changed");
        assert_eq!(operations.list("", 0, 10).len(), 1);
    }
    assert_eq!(create("b").unwrap_err().kind(), Code::ResourceExhausted);
    // What takes room would take it, a little each time, from what is kept for deletions.
    let grown = operations.change(|change| {
        change.update::<Instance>("a", |instance| {
            instance.display_name = "changed again".to_owned();
            Ok(())
        })?;
        told()
    });
    assert_eq!(grown.unwrap_err().kind(), Code::ResourceExhausted);
    // Nor is another forgotten for one that is not kept.
    let before = OPERATIONS_MAX - 1;
    meta.is_full.store(false, std::sync::atomic::Ordering::Relaxed);
    for _ in 0..before {
        operations.change(|_| told()).unwrap();
    }
    meta.is_full.store(true, std::sync::atomic::Ordering::Relaxed);
    let oldest = operations.list("", 0, 1);
    operations
        .change(|change| {
            change.update::<Instance>("a", |instance| {
                instance.display_name = "again".to_owned();
                Ok(())
            })?;
            told()
        })
        .unwrap();
    assert_eq!(operations.list("", 0, 1), oldest);
    assert_eq!(over(&meta).resources.list::<Instance>("", None, 10).len(), 1);
}
