//! Answers beside each other: who has room, who waits, and who is put aside.

use std::cell::Cell;

use super::*;
use futures::FutureExt as _;
use tepui_bigtable::error::Code;

/// Answers of as many connections as use the budget up, each with all that one may have.
async fn hold_all(streams: &Arc<Streams>) -> Vec<Answer> {
    let share = u64::from(streams.units_max / ANSWERS_PER_CONNECTION_PART) * UNIT_BYTES;
    let mut held = Vec::new();
    for _ in 0..ANSWERS_PER_CONNECTION_PART {
        held.push(made(streams, None, share).await);
    }
    held
}

/// The same, and what is kept for first messages as well.
async fn hold_all_and_kept(streams: &Arc<Streams>) -> Vec<Answer> {
    streams.kept.forget_permits(streams.kept.available_permits());
    hold_all(streams).await
}

/// An answer with a message of so many bytes that its client has not taken.
async fn made(streams: &Arc<Streams>, connection: Option<&Arc<Connection>>, bytes: u64) -> Answer {
    let mut answer = streams.answer(
        connection.map_or_else(Hold::default, |own| Hold::new(None, Arc::clone(own), None)),
    );
    answer.make_room().await.unwrap();
    answer.cover(bytes).await.unwrap();
    answer
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_waits_for_unread_ones_of_its_connection_is_refused_in_the_end() {
    let streams = Arc::new(Streams::new(8 << 20));
    let connection = streams.connection();
    let mut unread = made(&streams, Some(&connection), 100 << 20).await;
    let mut other = streams.answer(Hold::new(None, Arc::clone(&connection), None));
    let refused = other.make_room().await.unwrap_err();
    assert_eq!(refused.kind(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().contains("another connection"), "{refused}");
    assert_eq!((streams.figures().refused, streams.figures().waiting), (1, 0));
    // It goes on where the client reads in time.
    let mut other = streams.answer(Hold::new(None, connection, None));
    let (made, ()) = futures::join!(other.make_room(), async {
        tokio::time::sleep(ANSWER_WAIT / 2).await;
        unread.taken();
    });
    made.unwrap();
    assert_eq!(streams.figures().refused, 1);
}

#[tokio::test]
async fn one_connection_holds_a_part_of_the_budget_and_others_go_on() {
    let streams = Arc::new(Streams::new(1 << 20));
    let greedy = streams.connection();
    let mut held = Vec::new();
    loop {
        let mut answer = streams.answer(Hold::new(None, Arc::clone(&greedy), None));
        if answer.make_room().now_or_never().is_none() {
            break;
        }
        answer.cover(64 << 10).await.unwrap();
        held.push(answer);
    }
    assert_eq!(held.len(), (1 << 20) / ANSWERS_PER_CONNECTION_PART as usize / (64 << 10));
    assert_eq!(streams.figures().bytes, held.len() as u64 * (64 << 10));
    let mut other = streams.answer(Hold::default());
    assert!(other.make_room().now_or_never().is_some());
    // The client took one message: the next of the same connection goes on.
    held.pop();
    let mut answer = streams.answer(Hold::new(None, greedy, None));
    assert!(answer.make_room().now_or_never().is_some());
    drop((held, answer, other));
    assert_eq!(streams.figures(), StreamFigures::default());
}

#[tokio::test]
async fn a_few_small_reads_of_each_connection_go_on_though_others_hold_all_that_there_is() {
    let streams = Arc::new(Streams::new(128 << 20));
    let held = hold_all(&streams).await;
    let read = |connection: &Arc<Connection>| {
        let mut answer = streams.answer(Hold::new(None, Arc::clone(connection), None));
        async move {
            answer.make_room().await.unwrap();
            answer.cover(1 << 10).await.unwrap();
            answer
        }
    };
    let kept = (streams.kept_of_connection / 64) as usize;
    assert_eq!(kept, 2, "of 64 KiB each");
    let mut beside = Vec::new();
    while streams.kept.available_permits() >= 2 * 64 {
        let connection = streams.connection();
        // It does not know how large they are, and learns that.
        let answers: Vec<_> = (0..=kept).filter_map(|_| read(&connection).now_or_never()).collect();
        assert_eq!(answers.len(), kept);
        beside.push(answers);
        tokio::task::yield_now().await;
    }
    assert!(beside.len() >= FIRST_MESSAGES_KEPT_CONNECTIONS as usize);
    // Who waits for what its connection has of them goes on when one is taken, before any that comes later.
    let last = beside.last_mut().expect("there are some");
    let connection = Arc::clone(&last[0].connection);
    let mut waits = Box::pin(read(&connection));
    assert!(waits.as_mut().now_or_never().is_none());
    last.remove(0);
    assert!(read(&connection).now_or_never().is_none());
    last.push(waits.await);
    // They are given back as they are taken.
    let connection = streams.connection();
    while read(&connection).now_or_never().is_some() {
        beside.push(vec![read(&streams.connection()).await]);
    }
    beside.remove(0);
    for _ in 0..10 {
        assert!(read(&connection).now_or_never().is_some());
    }
    // A large row has to wait, and what a scan goes on with.
    let mut large = streams.answer(Hold::new(None, Arc::clone(&connection), None));
    large.make_room().now_or_never().unwrap().unwrap();
    assert!(large.cover(1 << 20).now_or_never().is_none());
    drop((held, beside, large));
    assert_eq!(streams.figures(), StreamFigures::default());
}

#[tokio::test]
async fn a_message_larger_than_the_budget_still_has_its_turn() {
    let streams = Arc::new(Streams::new(256 << 10));
    let mut answer = streams.answer(Hold::default());
    answer.make_room().await.unwrap();
    answer.cover(100 << 20).await.unwrap();
    assert!(answer.make_room().now_or_never().is_some());
}

#[tokio::test]
async fn what_follows_a_large_message_waits_for_no_more_room_than_it_is_expected_to_take() {
    // Of which a connection may have a megabyte.
    let streams = Arc::new(Streams::new(8 << 20));
    let connection = streams.connection();
    let mut stream = made(&streams, Some(&connection), 100 << 20).await;
    stream.taken();
    let other = made(&streams, Some(&connection), 512 << 10).await;
    assert!(stream.make_room().now_or_never().is_none());
    stream.expects(MESSAGE_BYTES_MIN);
    stream.make_room().now_or_never().expect("there is room").unwrap();
    drop((stream, other));
    assert_eq!(streams.figures(), StreamFigures::default());
}

#[tokio::test]
async fn room_that_is_lent_comes_back_as_it_is_or_with_whom_it_was_lent_to() {
    let streams = Arc::new(Streams::new(8 << 20));
    let mut answer = made(&streams, None, 512 << 10).await;
    let mut lent = answer.lend();
    assert!(lent.covers(256 << 10));
    assert_eq!(streams.figures().bytes, 256 << 10);
    answer.take_back(lent);
    answer.cover(512 << 10).await.unwrap();
    assert_eq!(streams.figures().bytes, 512 << 10);
    drop(answer.lend());
    assert_eq!(streams.figures().bytes, 0);
}

#[tokio::test]
async fn what_a_message_has_beyond_its_connections_part_is_charged_to_all() {
    const LARGE: u64 = 40 << 20;
    let streams = Arc::new(Streams::new(128 << 20));
    let connection = streams.connection();
    made(&streams, Some(&connection), LARGE).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(made(&streams, None, LARGE).await);
    }
    let mut next = streams.answer(Hold::new(None, connection, None));
    assert!(!next.has_room(), "a read of this connection begins with as much");
    let mut other = streams.answer(Hold::default());
    assert!(other.has_room(), "others begin with less");
    assert!(!other.covers(LARGE));
    // Taken piece by piece.
    held[0].keep(8 << 20, 0);
    assert!(held[0].make_room().now_or_never().is_some());
    assert!(other.covers(LARGE));
    drop((held, other, next));
    assert_eq!(streams.units.available_permits(), streams.units_max as usize);
}

#[tokio::test(start_paused = true)]
async fn messages_larger_than_the_budget_take_turns_and_leave_room_for_small_ones() {
    let streams = Arc::new(Streams::new(8 << 20));
    let mut slow = made(&streams, None, 100 << 20).await;
    slow.park(None, 0);
    let small = async || {
        drop(made(&streams, None, 64 << 10).await);
    };
    timeout(STALLED_AFTER, small()).await.expect("there is room beside a large one");
    let (beside, most) = (Cell::new(1), Cell::new(1));
    let large = (0..20).map(|_| async {
        let mut large = made(&streams, None, 100 << 20).await;
        beside.set(beside.get() + 1);
        most.set(most.get().max(beside.get()));
        tokio::task::yield_now().await;
        beside.set(beside.get() - 1);
        large.taken();
    });
    let large = futures::future::join_all(large);
    let small = futures::future::join_all((0..20).map(|_| small()));
    let all = timeout(STALLED_AFTER, futures::future::join(large, small)).await;
    assert!(all.is_ok(), "they wait for each other");
    assert_eq!(most.get(), LARGE_ANSWER_PART);
}

#[tokio::test]
async fn a_message_that_turns_out_large_is_charged_for_what_it_is() {
    let streams = Arc::new(Streams::new(8 << 20));
    let connection = streams.connection();
    let mut first = made(&streams, Some(&connection), 1 << 20).await;
    let mut second = streams.answer(Hold::new(None, connection, None));
    assert!(second.make_room().now_or_never().is_none(), "the connection has its part");
    let mut other = streams.answer(Hold::default());
    assert!(other.make_room().now_or_never().is_some());
    first.taken();
    assert!(second.make_room().now_or_never().is_some());
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_more_holds_nothing_meanwhile() {
    let streams = Arc::new(Streams::new(8 << 20));
    let connection = streams.connection();
    let mut answers: Vec<_> =
        (0..16).map(|_| streams.answer(Hold::new(None, Arc::clone(&connection), None))).collect();
    for answer in &mut answers {
        assert!(answer.make_room().now_or_never().is_some());
    }
    // All of the connection's part is held, and everybody needs more than the rest of it.
    let covered = answers.iter_mut().map(|answer| async move {
        answer.cover(600 << 10).await.unwrap();
        answer.taken();
    });
    let all = tokio::time::timeout(STALLED_AFTER, futures::future::join_all(covered)).await;
    assert!(all.is_ok(), "they wait for each other");
}

#[tokio::test(start_paused = true)]
async fn rows_that_turn_out_large_are_made_a_few_at_a_time() {
    // A connection has 16 MiB, a message's beginning 64 KiB of them.
    let streams = Arc::new(Streams::new(128 << 20));
    let connection = streams.connection();
    let (made, most, done) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let reads = (0..200).map(|_| {
        let mut answer = streams.answer(Hold::new(None, Arc::clone(&connection), None));
        let (made, most, done) = (&made, &most, &done);
        async move {
            answer.make_room().await.unwrap();
            made.set(made.get() + 1);
            most.set(most.get().max(made.get()));
            // Others read too, meanwhile.
            tokio::task::yield_now().await;
            answer.cover(10 << 20).await.unwrap();
            made.set(made.get() - 1);
            tokio::task::yield_now().await;
            answer.taken();
            done.set(done.get() + 1);
        }
    });
    let all = futures::future::join_all(reads);
    tokio::time::timeout(STALLED_AFTER, all).await.expect("they wait for each other");
    assert_eq!(done.get(), 200);
    // While nobody knows how large they are, and one more.
    assert!(most.get() <= FIRST_MESSAGES_PART + 1, "{} rows that nobody counts", most.get());
}

#[tokio::test]
async fn small_reads_of_a_connection_go_beside_each_other_soon_after_a_large_one() {
    let streams = Arc::new(Streams::new(128 << 20));
    let connection = streams.connection();
    let answer = || streams.answer(Hold::new(None, Arc::clone(&connection), None));
    let _large = made(&streams, Some(&connection), 10 << 20).await;
    // One at a time while the large one leaves no room for another such.
    let (mut first, mut second) = (answer(), answer());
    assert!(first.make_room().now_or_never().is_some());
    assert!(second.make_room().now_or_never().is_none());
    assert!(first.covers(1 << 10));
    assert!(second.make_room().now_or_never().is_some());
    assert!(second.covers(1 << 10));
    for _ in 0..10 {
        let mut small = answer();
        assert!(small.make_room().now_or_never().is_some());
        assert!(small.covers(1 << 10));
    }
    let mut small: Vec<_> = (0..90).map(|_| answer()).collect();
    assert!(small.iter_mut().all(|answer| answer.make_room().now_or_never().is_some()));
}

#[tokio::test(start_paused = true)]
async fn a_read_that_finds_its_first_row_late_holds_up_no_others_of_its_connection() {
    // A connection has 16 MiB. A read that passes many rows is given a turn with little beside a large answer.
    let streams = Arc::new(Streams::new(128 << 20));
    let connection = streams.connection();
    let answer = || streams.answer(Hold::new(None, Arc::clone(&connection), None));
    let _large = made(&streams, Some(&connection), 10 << 20).await;
    let mut scan = answer();
    scan.make_room().now_or_never().unwrap().unwrap();
    let late = async {
        tokio::time::sleep(10 * ANSWER_WAIT).await;
        Some("row")
    };
    let scan = async {
        let late = scan.make(pin!(late)).await;
        assert!(scan.covers(1 << 10));
        late
    };
    let others = futures::future::join_all((0..50).map(|_| async {
        let mut other = answer();
        other.make_room().await.unwrap();
        assert_eq!(other.make(pin!(async { Some(1) })).await, Some(1));
        assert!(other.covers(1 << 10));
    }));
    let (late, made) = futures::join!(scan, timeout(STALLED_AFTER, others));
    made.expect("they wait for the scan");
    assert_eq!(late, Some("row"), "it is gone on with, not begun anew");
    assert_eq!(streams.figures().refused, 0);
}

#[tokio::test(start_paused = true)]
async fn a_read_that_makes_a_row_keeps_its_turn_for_as_long_as_a_slow_disk_takes() {
    let streams = Arc::new(Streams::new(128 << 20));
    let connection = streams.connection();
    let answer = || streams.answer(Hold::new(None, Arc::clone(&connection), None));
    let mut large = made(&streams, Some(&connection), 10 << 20).await;
    let (mut row, mut next) = (answer(), answer());
    row.make_room().now_or_never().unwrap().unwrap();
    let mut waits = Box::pin(next.make_room());
    let made = async {
        tokio::time::sleep(FIRST_MESSAGE_TURN * 2).await;
        Some(())
    };
    row.make(pin!(made)).await.unwrap();
    assert!(waits.as_mut().now_or_never().is_none());
    // It is larger than what there is room for: the next one is not made as well.
    assert!(!row.covers(10 << 20));
    assert!(waits.as_mut().now_or_never().is_none());
    large.taken();
    row.cover(10 << 20).await.unwrap();
    assert!(waits.as_mut().now_or_never().is_some());
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_what_all_connections_share_is_not_refused_for_its_own() {
    // New connections expect large rows of the larger budget, and none of the smaller.
    for budget in [8 << 20, 128 << 20] {
        let streams = Arc::new(Streams::new(budget));
        let mut held = hold_all_and_kept(&streams).await;
        let connection = streams.connection();
        let reads = (0..15).map(|_| async {
            let mut answer = streams.answer(Hold::new(None, Arc::clone(&connection), None));
            answer.make_room().await.unwrap();
            answer.cover(1 << 10).await.unwrap();
        });
        let mut reads = Box::pin(futures::future::join_all(reads));
        let waited = timeout(3 * ANSWER_WAIT, reads.as_mut()).await;
        assert!(waited.is_err(), "there is no room");
        held.pop();
        timeout(STALLED_AFTER, reads).await.expect("there is room for all of them");
        assert_eq!(streams.figures().refused, 0);
    }
}

#[tokio::test]
async fn small_reads_stand_beside_each_other_for_what_all_connections_share() {
    let streams = Arc::new(Streams::new(8 << 20));
    let mut held = hold_all_and_kept(&streams).await;
    let connection = streams.connection();
    let mut small: Vec<_> =
        (0..10).map(|_| streams.answer(Hold::new(None, Arc::clone(&connection), None))).collect();
    let mut waits: Vec<_> = small.iter_mut().map(|answer| Box::pin(answer.make_room())).collect();
    assert!(waits.iter_mut().all(|wait| wait.as_mut().now_or_never().is_none()));
    held.pop();
    let go_on = waits.iter_mut().filter_map(|wait| wait.as_mut().now_or_never()).count();
    assert_eq!(go_on, 10, "each has its place among those of other connections");
}

#[tokio::test]
async fn reads_that_find_nothing_go_beside_each_other_soon_after_a_large_one() {
    let streams = Arc::new(Streams::new(128 << 20));
    let connection = streams.connection();
    let answer = || streams.answer(Hold::new(None, Arc::clone(&connection), None));
    let _large = made(&streams, Some(&connection), 10 << 20).await;
    for _ in 0..12 {
        let mut absent = answer();
        assert!(absent.make_room().now_or_never().is_some());
        assert_eq!(absent.make(pin!(async { None::<()> })).await, None);
    }
    let mut absent: Vec<_> = (0..90).map(|_| answer()).collect();
    assert!(absent.iter_mut().all(|answer| answer.make_room().now_or_never().is_some()));
}

#[tokio::test]
async fn the_end_of_a_large_read_tells_nothing_of_how_reads_begin() {
    let streams = Arc::new(Streams::new(128 << 20));
    let connection = streams.connection();
    let mut large = made(&streams, Some(&connection), 10 << 20).await;
    large.make_room().await.unwrap();
    assert_eq!(large.make(pin!(async { None::<()> })).await, None);
    assert_eq!(connection.expected.bytes(), 10 << 20);
}

#[tokio::test]
async fn what_is_made_of_a_large_row_stays_charged_and_waits_for_nobody() {
    let streams = Arc::new(Streams::new(8 << 20));
    let connection = streams.connection();
    let mut large = made(&streams, Some(&connection), 1 << 20).await;
    large.keep(900 << 10, 0);
    large.park(None, 0);
    let mut other = streams.answer(Hold::new(None, Arc::clone(&connection), None));
    let mut waits = Box::pin(other.make_room());
    assert!(waits.as_mut().now_or_never().is_none());
    assert!(large.make_room().now_or_never().is_some(), "its next message is there");
    assert_eq!(streams.figures().bytes, 900 << 10);
    assert_eq!(streams.figures().parked, 0);
    assert!(waits.as_mut().now_or_never().is_some(), "one has been taken");
    assert!(large.covers(900 << 10));
    large.keep(0, 0);
    drop(waits);
    drop(other);
    // The last one was taken: the next is made when there is room.
    let mut others: Vec<_> =
        (0..3).map(|_| streams.answer(Hold::new(None, Arc::clone(&connection), None))).collect();
    let has_room = |answer: &mut Answer| answer.make_room().now_or_never().is_some();
    assert_eq!(others.iter_mut().map(has_room).collect::<Vec<_>>(), [true, false, false]);
    assert!(has_room(&mut large));
}

#[tokio::test]
async fn what_lies_read_ahead_stays_charged_and_gives_a_client_no_longer_for_its_message() {
    let streams = Arc::new(Streams::new(128 << 20));
    let mut read = made(&streams, None, 15 << 20).await;
    read.keep(1 << 20, 13 << 20);
    read.park(None, 0);
    let patience = CLOSE_STALLED_AFTER.as_micros() as u64;
    assert_eq!((streams.stuck(patience - 1), streams.stuck(patience)), (0, 1));
    assert!(read.make_room().now_or_never().is_some(), "its next message is there");
    assert_eq!(streams.figures().bytes, 14 << 20);
}

#[tokio::test]
async fn a_client_has_longer_for_a_message_that_is_larger_than_others() {
    let streams = Arc::new(Streams::new(8 << 20));
    let connection = streams.connection();
    let mut large = made(&streams, Some(&connection), 40 << 20).await;
    large.keep(28 << 20, 0);
    large.park(None, 0);
    let others = (0..ANSWERS_PER_CONNECTION_PART).map(|_| async {
        let mut other = streams.answer(Hold::default());
        other.make_room().await.unwrap();
        other.cover(1 << 20).await.unwrap();
        futures::future::pending::<()>().await;
    });
    let mut others = Box::pin(futures::future::join_all(others));
    assert!(others.as_mut().now_or_never().is_none());
    // The large one has half of the budget.
    assert_eq!(streams.figures().waiting, u64::from(ANSWERS_PER_CONNECTION_PART / 2));
    let patience = 3 * CLOSE_STALLED_AFTER.as_micros() as u64;
    streams.relieve(patience - 1, false, &Gate::new(1 << 20, 1 << 20, 1 << 20));
    assert_eq!(streams.figures().closed, 0, "it may be reading all the time");
    streams.relieve(patience, false, &Gate::new(1 << 20, 1 << 20, 1 << 20));
    assert_eq!(streams.figures().closed, 1);
}

#[tokio::test]
async fn any_answer_that_its_client_leaves_is_ended_where_others_wait_for_its_memory() {
    let streams = Arc::new(Streams::new(8 << 20));
    let mut left = hold_all_and_kept(&streams).await;
    for answer in &mut left {
        answer.park(None, 1_000);
    }
    assert_eq!(streams.figures().parked, u64::from(ANSWERS_PER_CONNECTION_PART));
    let late = 1_000 + CLOSE_STALLED_AFTER.as_micros() as u64;
    streams.relieve(late, false, &Gate::new(1 << 20, 1 << 20, 1 << 20));
    assert_eq!(streams.figures().closed, 0, "nobody waits");
    let mut other = streams.answer(Hold::default());
    let mut waits = Box::pin(other.make_room());
    assert!(waits.as_mut().now_or_never().is_none());
    // One whose client has taken its message is left alone, and there is room.
    left[0].taken();
    assert_eq!(streams.figures().parked, u64::from(ANSWERS_PER_CONNECTION_PART) - 1);
    assert!(waits.as_mut().now_or_never().is_some());
    drop(waits);
    drop(other);
    left[0].cover(1 << 20).await.unwrap();
    let mut other = streams.answer(Hold::default());
    let mut waits = Box::pin(other.make_room());
    assert!(waits.as_mut().now_or_never().is_none());
    streams.relieve(late - 1, false, &Gate::new(1 << 20, 1 << 20, 1 << 20));
    assert_eq!(streams.figures().closed, 0, "it is not long enough");
    streams.relieve(late, false, &Gate::new(1 << 20, 1 << 20, 1 << 20));
    assert_eq!(streams.figures().closed, 1);
}

#[test]
fn answers_that_are_made_without_room_are_counted_and_keep_others_from_being_begun() {
    let streams = Arc::new(Streams::new(8 << 20));
    let (left, other) = (streams.connection(), streams.connection());
    let hold = |connection: &Arc<Connection>| Hold::new(None, Arc::clone(connection), None);
    let mut held = Vec::new();
    let make = |connection: &Arc<Connection>| {
        let mut answer = hold(connection).answer().unwrap();
        answer.made(900 << 10, 0);
        answer
    };
    // A megabyte is a connection's share.
    for count in 1..=3 {
        hold(&left).check_answers().unwrap();
        held.push(make(&left));
        assert_eq!(streams.figures().bytes, count * (900 << 10));
    }
    assert_eq!(hold(&left).check_answers().unwrap_err().kind(), Code::ResourceExhausted);
    hold(&other).check_answers().expect("it has left nothing");
    held.pop();
    hold(&left).check_answers().unwrap();
    // As much as all of them may have.
    let connections: Vec<_> = (0..20).map(|_| streams.connection()).collect();
    let all: Vec<_> = connections.iter().flat_map(|one| [make(one), make(one)]).collect();
    assert_eq!(hold(&other).check_answers().unwrap_err().kind(), Code::ResourceExhausted);
    let gate = Gate::new(1 << 20, 1 << 20, 1 << 20);
    streams.relieve(CLOSE_STALLED_AFTER.as_micros() as u64, false, &gate);
    assert_eq!(streams.figures().closed, 1, "of those that read nothing");
    drop((held, all));
    hold(&other).check_answers().unwrap();
    assert_eq!(streams.figures().bytes, 0);
}

#[tokio::test]
async fn who_asks_for_a_read_while_it_is_being_suspended_waits_for_that_and_holds_up_no_others() {
    let streams = Arc::new(Streams::new(8 << 20));
    let mut read = made(&streams, None, 1 << 20).await;
    read.park(None, 0);
    let slot = Arc::clone(&read.slot.as_ref().unwrap().1);
    for _ in 0..2 {
        lock(&slot.state).is_lent = true;
        let mut waits = Box::pin(read.unpark());
        assert!(waits.as_mut().now_or_never().is_none());
        lock(&slot.state).is_lent = false;
        slot.is_back.notify_one();
        assert!(waits.as_mut().now_or_never().is_some());
    }
}
