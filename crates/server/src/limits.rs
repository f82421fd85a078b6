//! Every limit of the server, with its unit and its reason.

use std::time::Duration;

/// Bytes of one request message that is decoded at most: the documented 256 MiB and some room, so that a
/// request just over the limit is refused with a text that names it instead of a transport error.
pub const REQUEST_MESSAGE_BYTES_MAX: usize = tepui_bigtable::limits::REQUEST_BYTES_MAX + (1 << 20);

/// Bytes of one request message of administration, and of operations, at most: gRPC's own limit, and Bigtable's for the largest of
/// them, a schema bundle. Larger ones would only be refused later.
pub const ADMIN_REQUEST_BYTES_MAX: usize = 4 << 20;

/// Bytes of one request message of health checks and reflection, at most. They pass no gate, so that nobody counts what has come of a
/// thousand of them on each connection; each is a name, of up to a kilobyte, and its host.
pub const UNGATED_MESSAGE_BYTES_MAX: usize = 4 << 10;

/// Streams of reflection on all connections, at most: as many people as look around at a time, and then some. Each keeps up to three answers, of a hundred
/// kilobytes at most, for as long as its client takes none, and nobody counts them. Fewer, and a few such clients keep others from it; more, and
/// they keep more than the 32 MiB of the process bear.
pub const REFLECTION_STREAMS_MAX: usize = 64;

/// Watches of health on all connections, at most, beyond one on each, which clients that choose a server by them have. Each takes eleven kilobytes, for as
/// long as its client likes, and nobody counts them. Fewer, and proxies with many clients on a connection find none; more, and they keep more
/// than a few megabytes.
pub const HEALTH_WATCHES_MAX: usize = 256;

/// When to try again where there are as many streams as may be: one of reflection is mostly over within a second.
pub const PLACES_RETRY: Duration = Duration::from_secs(1);

/// How long a client of reflection may ask nothing on its stream, until that is ended and its place another's. Programs ask all that they want within
/// a second, and begin another stream where people go on asking. Less, and they do so at each question; more, and as many clients that have gone quiet
/// keep others out for longer.
pub const REFLECTION_QUIET_MAX: Duration = Duration::from_mins(1);

/// Bytes of one message of a `MutateRows` response, at most. Well under the 4 MiB that clients accept, and
/// enough for all statuses of an ordinary batch in one message.
pub const MUTATE_ROWS_MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Characters of the id of a table or an authorized view, at most: Bigtable's documented limit.
pub const TABLE_ID_CHARS_MAX: usize = 50;

/// Characters of an instance's id, at most: Bigtable's documented limit.
pub const INSTANCE_ID_CHARS_MAX: usize = 33;

/// Characters of a cluster's id, at most: Bigtable's documented limit is 30; clients' own tests make an id of an
/// instance's with a few more.
pub const CLUSTER_ID_CHARS_MAX: usize = 50;

/// Characters of an app profile's id, at most: Bigtable's documented limit.
pub const APP_PROFILE_ID_CHARS_MAX: usize = 50;

/// Instances of a project, at most: Bigtable's documented limit. `ListInstances` and `ListClusters` have no pages, and are whole in memory: some hundred
/// kilobytes, and 16 MB where each has all labels that it may have.
pub const INSTANCES_MAX: usize = 1_000;

/// Clusters of an instance, at most. Bigtable has one for each zone of eight regions.
pub const CLUSTERS_MAX: usize = 32;

/// Nodes that a cluster may claim to have, at most: a guard against mistyped numbers.
pub const SERVE_NODES_MAX: i32 = 10_000;

/// App profiles of an instance, at most: Bigtable's documented limit.
pub const APP_PROFILES_MAX: usize = 2_000;

/// Bytes of an app profile's description, at most: a text for people.
pub const DESCRIPTION_BYTES_MAX: usize = 1_024;

/// Characters of a display name, at most: one line for people. Bigtable's console has 30; its API takes more.
pub const DISPLAY_NAME_CHARS_MAX: usize = 128;

/// Labels of an instance, at most, and how long each of their keys and values may be: Bigtable's documented limits.
pub const LABELS_MAX: usize = 64;
/// Characters of a label's key or value, at most.
pub const LABEL_CHARS_MAX: usize = 63;
/// Bytes of a label's key or value: less than this.
pub const LABEL_BYTES_MAX: usize = 128;

/// Authorized views of a table, at most. Bigtable is made for thousands; all of them are in memory.
pub const VIEWS_PER_TABLE_MAX: usize = 10_000;

/// Bytes of the authorized views that are kept compiled, at most: those that requests came through lately. Some thousands of a few prefixes and columns,
/// or some twenty of the largest; with fewer, requests through more of these compile theirs again, which takes a millisecond, and with more, what nobody
/// has told `memory` of grows.
pub const COMPILED_VIEWS_BYTES_MAX: usize = 16 << 20;

/// The number of these, at most: where there is no room for one more, it is looked at each whether it is what is stored, which takes some
/// milliseconds.
pub const COMPILED_VIEWS_MAX: usize = 10_000;

/// Principals in a policy, counted in each binding: IAM's documented limit.
pub const POLICY_MEMBERS_MAX: usize = 1_500;

/// Bytes of a policy, at most. 1,500 members with long names; policies are in memory.
pub const POLICY_BYTES_MAX: usize = 256 << 10;

/// Bytes of all policies and the names of what they are of, at most: a quarter of the catalog's 256 MiB, which are for what people keep of everything; 256 of the
/// largest policies, or a hundred thousand of the usual few hundred bytes.
pub const POLICIES_BYTES_MAX: usize = 64 << 20;

/// Permissions of one `TestIamPermissions`, at most: IAM's documented limit.
pub const TESTED_PERMISSIONS_MAX: usize = 100;

/// Characters of the condition of a binding, at most: IAM's documented limit for the expression.
pub const CONDITION_CHARS_MAX: usize = 12 << 10;

/// Characters of a resource name, at most. Longer than any valid one; bounds keys of the meta store.
pub const RESOURCE_NAME_CHARS_MAX: usize = 1_024;

/// Initial splits of a new table, at most. Each becomes a tablet with files and a memtable of its own.
pub const INITIAL_SPLITS_MAX: usize = 1_000;

/// Column families of a table, at most. Bigtable advises a hundred; the schema is one record of the
/// catalog and is copied on every change.
pub const FAMILIES_MAX: usize = 1_000;

/// Bytes of a table's entry of the catalog, at most, once it grows: all that it is set to, types and rules of its families before all.
/// A thousand families with the longest rules have half of it. An answer with the whole table must be under the 4 MiB that clients
/// take, and pages of lists are of [`PAGE_BYTES_MAX`].
pub const TABLE_BYTES_MAX: usize = 1 << 20;

/// Fields of a table's entry that have a length, at most, however deep, once it grows: the largest struct that there may be, of 10,000 fields that each
/// say their encoding, has 60,000, and a thousand families with rules of ten parts have 20,000. Two bytes each, they are 130 in memory
/// at worst, structs of one struct: 8 MB in all. More, and a few hundred tables take all memory that there is; with fewer, that struct would not fit.
/// A thousand families with the longest rules of tiny parts, which nobody means, are too many.
pub const TABLE_FIELDS_MAX: usize = 1 << 16;

/// Modifications of one `ModifyColumnFamilies`, at most: a whole schema dropped and created anew.
pub const MODIFICATIONS_MAX: usize = 2 * FAMILIES_MAX;

/// Tables of one page of `ListTables` when the client does not say, and at most.
pub const PAGE_SIZE_DEFAULT: usize = 1_000;

/// Bytes of one page of a list, at most, unless the first of it is larger: clients take messages of 4 MiB.
pub const PAGE_BYTES_MAX: usize = 3 << 20;

/// Operations that are remembered. Clients ask until one is done and rarely after; the oldest that are done are
/// forgotten first, but not within [`OPERATION_KEPT`].
pub const OPERATIONS_MAX: usize = 1_000;

/// Bytes of a request that its operation tells of, at most: twice the largest that means all that it says, of an authorized view. A request may have
/// megabytes in fields that mean nothing there, which with the rest of the operation would be more than the 4 MiB that clients take. And of the tables that
/// the creation of a cluster tells of: a thousand.
pub const TOLD_REQUEST_BYTES_MAX: usize = 128 << 10;

/// Bytes of all operations that are remembered, roughly: the oldest go before there are [`OPERATIONS_MAX`] where they hold
/// large results, such as schema bundles of 4 MiB. A part of the catalog, whose 256 MiB are for what people keep in it.
pub const OPERATIONS_BYTES_MAX: usize = 16 << 20;

/// How long an operation that a client has to ask about is remembered after its end at least: several times the longest pause
/// that clients make between two questions. One that was done when it was answered needs no asking, nor does one of the server's own.
pub const OPERATION_KEPT: Duration = Duration::from_mins(10);

/// When to try again where clients may still ask about all operations that there are.
pub const OPERATIONS_RETRY: Duration = Duration::from_secs(10);

/// How long `WaitOperation` waits at most, and where the client does not say. Longer than any operation should take;
/// it bounds what clients that went away leave behind.
pub const OPERATION_WAIT_MAX: Duration = Duration::from_mins(10);

/// `WaitOperation`s that wait at a time, at most; others are answered at once, as the API has it, with what there is. Each keeps the room of
/// its request, and a thousand keep less than half of the smallest there is.
pub const OPERATION_WAITS_MAX: usize = 1_000;

/// Bytes of room that such a request may hold, at most, to wait: that of a name. One that is padded is answered at once, too.
pub const OPERATION_WAIT_BYTES_MAX: u64 = 4 << 10;

/// How long a deleted table can be undeleted: Bigtable's documented seven days.
pub const UNDELETE_RETENTION: Duration = Duration::from_hours(7 * 24);

/// Resources of tables that are gone that one change removes, at most: entries of some hundred and fifty bytes, and as many of their policies, are half
/// of what the catalog keeps of a full disk for removals. Fewer, and each waits for the disk; more, and other changes wait for them, and a full disk takes
/// none of them.
pub const SWEPT_PER_CHANGE_MAX: usize = 100;

/// How often tables past [`UNDELETE_RETENTION`] are looked for. Their space is the only thing that waits.
pub const SWEEP_INTERVAL: Duration = Duration::from_hours(1);

/// How often the engine's health is looked at for `grpc.health.v1`. A failed write answers its own callers
/// at once; this only tells load balancers.
pub const HEALTH_INTERVAL: Duration = Duration::from_secs(1);

/// Signals to stop that are equal and come within so long of the first are one: `timeout` sends its signal to the process and then to the group
/// that the process is in, and a supervisor may do both, too. Longer, and somebody who wants an end at once has to wait for it.
pub const SAME_SIGNAL: Duration = Duration::from_millis(500);

/// How long requests under way may go on after a shutdown was asked for.
pub const DRAIN: Duration = Duration::from_secs(5);

/// How long the threads of the server may take to end after that: to let go of what was cut off, which is milliseconds. One that has not ended waits for
/// a read that the device keeps, perhaps for good, or works through a filter of many steps, and is left behind.
pub const THREADS_END: Duration = Duration::from_millis(300);

/// How long the engine may take to flush and close after that. With [`DRAIN`], [`THREADS_END`] and [`LOG_FLUSH`] it stays under the ten
/// seconds that service managers commonly give. What was not flushed is in the log and is replayed.
pub const CLOSE: Duration = Duration::from_secs(4);

/// Bytes of lines of the log that wait to be written, at most; those beyond are left out and counted. Some thousand lines: more than a start or any failure has
/// at once, and the thread that writes them needs a moment for. More would be old by the time they were read.
pub const LOG_LINES_BYTES_MAX: usize = 1 << 20;

/// How long the end of the process waits for its last lines to be written. Whatever takes lines takes these in less; where nothing does, nobody notices
/// that much, nor does a second signal, which is to end the process at once.
pub const LOG_FLUSH: Duration = Duration::from_millis(200);

/// How often it is told in the log that requests fail for the same reason: as often as an operator looks. A damaged block that clients poll would be told of
/// thousands of times a second.
pub const FAILURE_TOLD_INTERVAL: Duration = Duration::from_mins(1);

/// Reasons that are told of by themselves in that time, at most, each of a kilobyte; all others count as one. More would be read by nobody.
pub const FAILURES_TOLD_MAX: usize = 64;

/// What a request that a core does not put together and carry out itself takes of the budget of requests, at least: a message of some 700 KB. Its
/// values are copied twice, in pieces as large as they are, half a millisecond together; a hand-over to another thread takes ten microseconds.
pub const LARGE_REQUEST_ROOM_BYTES: u64 = 1 << 20;

/// Bytes of a large message that are copied at once, by a core's helper: a tenth of a millisecond, or some milliseconds where the memory is
/// new, beside ten microseconds for a hand-over. Two such pieces, which nobody counts, may lie in the memory that they were read into meanwhile.
pub const COLLECTED_BYTES: usize = 1 << 20;

/// Parts that are copied at once, at most: twice as many as HTTP/2's frames of the usual size make of [`COLLECTED_BYTES`]. Each may hold the 16
/// to 32 KiB that it was read with, which is 4 MiB at most.
pub const COLLECTED_PARTS_MAX: usize = 128;

/// Smaller parts are copied out of what they were read with at once: what is copied is a microsecond's, and what it would hold is many times as much.
pub const COLLECTED_PART_BYTES_MIN: usize = 4 << 10;

/// How long what a request leaves to the core's helper, large values of reads and their messages, parts of what is sent, waits for it to begin
/// where it does nothing of what others left to it: then the core does it itself, and some more of what the request has of such. The helper may lack a processor, of which it has a tenth where
/// all are in use, or copy a value of 100 MB, which is as long. With less, sixteen rows of megabytes that are read at once, each some
/// milliseconds of its work, would be the core's again.
pub const HELPER_PATIENCE: Duration = Duration::from_millis(100);

/// How many times [`HELPER_PATIENCE`] that waits where the helper goes on with what others left to it: a second. Sixteen reads of megabytes at once, with
/// a tenth of a processor for their helper, are that long; where the core took them over instead, all else that it serves would wait for
/// the copying.
pub const HELPER_PATIENCES_MAX: u32 = 10;

/// Bytes of a request that counts as small: it has a part of the budget of requests of its own, so that it does not
/// wait behind large ones. A mutation of a row or a read; a bulk is none.
pub const SMALL_REQUEST_BYTES_MAX: u64 = 64 << 10;

/// The part of the room for small requests that writes of rows may have: a half. They wait for the log, which may stand still for as long as its device does, and are
/// thousands before its queue refuses them: reads and administration have the rest. Smaller, and clients of a fast log wait for each other; larger, and with
/// change streams, which may have as much in the worst case, more of what waits for long has all of it.
pub const WRITES_PART_OF_SMALL_REQUESTS: u64 = 2;

/// Bytes of a request that every budget must have room for: a bulk as clients make them by default, or a value of
/// a megabyte.
pub const REQUEST_BYTES_MIN: u64 = 4 << 20;

/// Bytes of what a message is decoded into which nobody counts: of some thirty mutations, as most writes have fewer of.
pub const DECODED_FREE_BYTES: u64 = 4 << 10;

/// Bytes of what the patterns of a filter are compiled to and may build, which nobody counts: of one that is common, or a dozen small ones, which use a tenth of it. A read
/// under way has as much of the budget of answers at least. Less, and reads with a pattern wait for each other where memory is little; more, and many reads have more than that budget.
pub const FILTER_FREE_BYTES: u64 = 64 << 10;

/// How long a request may wait for room in the budget before it is refused. Bulk loads by several clients take
/// turns within it; longer would use up the patience of clients that know better when to come back.
pub const REQUEST_WAIT: Duration = Duration::from_secs(1);

/// How long a client may keep the first byte of its message once it has begun its request, which takes a stream and a task: some have a thousand requests on one connection,
/// and send all heads before any message.
pub const REQUEST_HEAD_PAUSE: Duration = Duration::from_mins(1);

/// How long a client may keep the rest of a message that it has begun. The room for all of it is taken already.
pub const REQUEST_BODY_PAUSE: Duration = Duration::from_secs(10);

/// How many of [`REQUEST_BODY_PAUSE`] a message may take to come while others wait for room like its own: in each, so large a part of it comes, or its room is
/// for others. Five minutes in all, in which a megabyte comes over any line, and 256 MiB over one of ten megabits a second. Fewer, and lines that
/// are slow but honest are cut; more, and a client that sends a byte now and then keeps large messages of all others out for longer.
pub const REQUEST_BODY_PAUSES: u64 = 32;

/// The same for a message of [`SMALL_REQUEST_BYTES_MAX`] at most: 20 seconds, which is 26 kilobits a second for the largest. More, and a few hundred such
/// messages that drip keep everybody's reads out for minutes.
pub const SMALL_REQUEST_BODY_PAUSES: u64 = 2;

/// How many times the room that it leaves free a connection may have, of each part of the budget of requests: alone it has three quarters, two have three
/// sevenths each, and whoever comes finds the rest. Larger, and newcomers wait for the slowest line where the memory is little; smaller, and
/// a load by one connection is held up where memory is free.
pub const ROOM_PER_FREE: u64 = 3;

/// The part of that room that a connection may have in any case, in line with all others: a thirty-second, some three hundred small requests with a `memory`
/// of 1 GiB. Streams keep the room of their requests for as long as they last, and where others take all that is free, what comes beside
/// them would never have its turn. Larger, and fewer connections have all of it; smaller, and less goes on beside streams.
pub const ROOM_OWN_PART: u64 = 32;

/// How long a read may wait for its client before it lets go of what it holds in the engine. A client that works on a
/// message takes less; finding the place again costs a few reads of the cache.
pub const STALLED_AFTER: Duration = Duration::from_secs(1);

/// How long a client may leave an answer unread before its connection may be closed, which happens only where others
/// wait for the memory.
pub const CLOSE_STALLED_AFTER: Duration = Duration::from_secs(2);

/// How long an answer waits for others of its connection, which hold the memory that it may have, before it is refused: its client may
/// wait for just this one before it reads the others. Clients that work on what they have read for that long do not ask for more meanwhile.
pub const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// How long a read may make its first message in less room than is expected to be needed before the next of its connection may, for each
/// [`FIRST_MESSAGE_TURN_BYTES`] that are expected. One that takes longer mostly looks for a row that its filter lets pass, and others wait for it. Shorter,
/// and a slow disk lets rows be made side by side that nobody has counted; longer, and a hundred such scans use [`ANSWER_WAIT`] up.
pub const FIRST_MESSAGE_TURN: Duration = Duration::from_millis(100);

/// See [`FIRST_MESSAGE_TURN`]: with it 40 MB a second, which a disk has that serves many reads at once.
pub const FIRST_MESSAGE_TURN_BYTES: u64 = 4 << 20;

/// Bytes that a client is to take of one message in [`CLOSE_STALLED_AFTER`]: the largest that any client accepts unasked. One that takes a larger
/// message has that time for each so many bytes of it, since of a message under way nobody knows how much was taken.
pub const CLOSE_STALLED_BYTES: u64 = tepui_bigtable::limits::RESPONSE_BYTES_MAX as u64;

/// Bytes of an answer that the transport is given without asking when they were sent: as much as it may still have of a stream after the
/// budget has it back. A scan's first message, of 64 KiB and a row, or a value of 64 KiB with its names, goes out with what
/// follows in as few calls as can be. To ask costs two allocations and a wake-up.
pub const UNPACED_BYTES_MAX: usize = 96 << 10;

/// Bytes that the transport has of all answers of a connection without having been asked when they were sent, with more of which it is asked of every
/// frame: a client that gives a thousand streams a window of a byte each would leave [`UNPACED_BYTES_MAX`] of each where nobody
/// counts it. A dozen first messages of scans; more, and such clients have more; less, and reads side by side wait for the socket one by one.
pub const UNPACED_CONNECTION_BYTES_MAX: u64 = 1 << 20;

/// Bytes of an answer that are not counted there, at most: to count costs an allocation, of which answers of a few rows are to have none. Less where there
/// are many connections, so that all of them have no more that way than [`LOOSE_PART`] lets them have.
pub const UNCOUNTED_BYTES_MAX: u64 = 8 << 10;

/// The part of the budget of answers that may be in memory beside it, of small answers that are over and have not left, and as much again of requests that are
/// only a head. Larger, and many clients which read nothing take what the allocator has for itself; smaller, and a
/// burst of small answers is charged and looked for one by one.
pub const LOOSE_PART: u64 = 4;

/// Bytes of either that a connection has as its own: what it takes for itself anyway ([`CONNECTION_BYTES`]). A few answers; with more, all
/// connections could have more than memory has for them.
pub const LOOSE_OWN_BYTES: u64 = CONNECTION_BYTES;

/// Bytes that a request takes before its message comes: its stream and its task, and as much of headers as clients send.
pub const REQUEST_HEAD_BYTES: u64 = 3 << 10;

/// When to try again where there are too many of these: messages mostly come with the head.
pub const LOOSE_RETRY: Duration = Duration::from_secs(1);

/// Bytes of the last message of an answer with which that is over when the message is made, and keeps nothing however long its client
/// takes: fewer. With a larger one it is there until that was taken. More would let each
/// frozen stream keep so much where nobody looks; with less, more answers would be looked for.
pub const ENDS_AT_ONCE_BYTES: u64 = 32 << 10;

/// Headers that the memory of a request's has room for where its answer's are made in it, at most. Clients send some ten; larger
/// tables, of hundreds of kilobytes, would stay with the transport for as long as an answer is not read.
pub const HEADERS_REUSED_MAX: usize = 64;

/// Bytes of headers that a request keeps as they came, at most; of one that has more of them, or more than [`HEADERS_REUSED_MAX`], it keeps those
/// that are looked at later. Clients send less than a kilobyte. Larger, and a thousand requests of a connection which are begun and go no
/// further, and which nobody counts before their messages come, keep that many times as much.
pub const HEADERS_KEPT_BYTES_MAX: usize = 4 << 10;

/// Fields of a request to the services beside the data API's that have a length, at most, however deep: a schema of ten thousand fields has
/// 60,000, and rules of garbage collection of a thousand families up to 130,000. Two bytes each as they come, they are some hundred in
/// memory, 20 to 30 MB in all, and are counted before they are decoded.
pub const ADMIN_FIELDS_MAX: usize = 200_000;

/// How often stalled reads are looked for.
pub const RELIEF_INTERVAL: Duration = Duration::from_millis(250);

/// The part of the budget of answers that one connection may hold: an eighth. Larger, and a few clients that do not
/// read hold all of it; smaller, and a client with one connection cannot scan in parallel.
pub const ANSWERS_PER_CONNECTION_PART: u32 = 8;

/// The part of the budget of answers that is kept for first messages of 64 KiB at most, where others have all the rest: a sixteenth. Larger, and scans have
/// less for nothing most of the time; smaller, and a few connections whose clients do not read have that, too.
pub const FIRST_MESSAGES_KEPT_PART: u32 = 16;

/// Connections that may have as much of that: each has a part of it, and one message at least. Fewer, and as many whose clients do not read have all
/// of it; more, and one with many reads under way has room for few of them at a time where it is needed.
pub const FIRST_MESSAGES_KEPT_CONNECTIONS: u32 = 64;

/// The part of the budget of answers that one message is charged for, where it is larger than what its connection may hold: a half. A row of up to
/// 256 MB may be most of the budget, or more than it. Larger, and a client that takes such a row slowly keeps all others from reading meanwhile; smaller,
/// and more of such rows are in memory at a time than the budget says.
pub const LARGE_ANSWER_PART: u32 = 2;

/// The part of what a connection may hold of answers that a read of single rows may read ahead: a quarter. Larger, and one read
/// leaves no room for others of its connection; smaller, and rows of a hundred kilobytes wait for the disk one after the other where memory is small.
pub const READ_AHEAD_PART: u64 = 4;

/// Connections to the endpoint of metrics, at most: a scraper or two, and somebody who looks. One more takes the place of another.
pub const METRICS_CONNECTIONS_MAX: usize = 16;

/// How long such a connection may take, from its beginning until its answer was taken: as long as Prometheus waits for one.
pub const METRICS_TIMEOUT: Duration = Duration::from_secs(10);

/// How long no such connection is accepted after one could not be: each failure is told in the log, and for one that comes in meanwhile it
/// is no longer than health checks wait.
pub const METRICS_ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// The part of the budget of requests, of small ones or of others, that the reads of connections with answers which their clients do not take may
/// keep while others wait in vain for it: a half. They go on by the keys and the filters of their
/// requests. Smaller, and a few pauses close connections where writes are
/// more than the memory has room for anyway; larger, and they leave too little to those writes.
pub const STALLED_REQUESTS_PART: u64 = 2;

/// HTTP/2 window of one connection, in bytes: bounds what all its streams buffer together. At most this; less
/// where memory is small, see [`CONNECTION_WINDOW_PART`].
pub const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// The part of the budget of requests that the window of a connection may be: what arrives before it is asked
/// for is outside of the budget, so it must take many connections to fill it that way.
pub const CONNECTION_WINDOW_PART: u64 = 32;

/// The part of a connection's window that one stream has: what a request that waits for room has sent counts against
/// the connection, so it must take many of them to leave none for the one whose turn it is. A megabyte where the
/// connection has the most: a round trip for each is nothing beside it.
pub const STREAM_WINDOW_PART: u32 = 16;

/// Requests of one connection that may wait for room at a time; others are refused at once. Fewer than
/// [`STREAM_WINDOW_PART`], so that the one whose turn it is has a window.
pub const REQUESTS_WAITING_PER_CONNECTION_MAX: u64 = 12;

/// The part of the room for requests that those which wait for it may send meanwhile, up to a stream's window each, whatever connections they come by: an
/// eighth of the room that they wait for, beside it. 48 windows (192 where those have a megabyte), a hundredth of `memory`, of which
/// the allocator has a tenth. Smaller, and loads of a few connections are refused though the room would be theirs
/// within the second that they wait; larger, and a hundred of them on a slow disk take what nobody has counted, to wait in vain.
pub const WAITING_PART: u64 = 8;

/// HTTP/2 window of a connection, in bytes, at least: a part for each stream that is the protocol's own.
pub const CONNECTION_WINDOW_BYTES_MIN: u32 = STREAM_WINDOW_PART * (64 << 10);

/// Requests in flight on one connection, at most. Clients open further connections beyond it.
pub const STREAMS_PER_CONNECTION_MAX: u32 = 1_000;

/// Requests of one connection that its client has given up before they were begun, at most; with one more the connection ends, and
/// with it the requests of others on it. As many as may be in flight: a program that gives all of its calls up at once has done
/// nothing wrong, and HTTP/2's library would bear 20. Each is its headers until it is the connection's turn, as one in flight is.
pub const RESET_STREAMS_MAX: usize = STREAMS_PER_CONNECTION_MAX as usize;

/// Frames against HTTP/2's rules, such as of calls that are long over, that a connection may send in its life; with one more it ends. Each is
/// answered, with half a kilobyte until the client has read the answer: 5 MB, less than a connection's window may hold. Clients send
/// some in good faith, where the server has ended more than 50 of their calls within a second and the rest of the requests is on its way.
pub const BAD_FRAMES_MAX: usize = 10_000;

/// Bytes of request headers, at most. Bigtable's clients send a few hundred bytes of routing and features.
pub const HEADERS_BYTES_MAX: u32 = 64 << 10;

/// Bytes with which every HTTP/2 connection begins.
pub const PREFACE_BYTES: usize = 24;

/// How long a connection may take to send them; it is probed only from there on, and who sends nothing would have a place among the
/// connections for good. Long enough for packets that are lost several times, and as long as gRPC's own clients try to connect.
pub const PREFACE_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a connection whose end was sent is read on, for its peer to end it, too: where it is closed at once, what the peer sends meanwhile, as it takes
/// what was sent before, is answered by a reset, with which the system drops what has not left. A few round trips; longer, and stops
/// wait for clients that keep such connections.
pub const LINGER: Duration = Duration::from_secs(1);

/// How long nothing must have been asked on a connection for it to give its place to another, where there is none left. Longer than clients are quiet that are in
/// use; with less, those would connect again and again. More, and one that leaks connections keeps others out for longer.
pub const REST: Duration = Duration::from_mins(1);

/// For how long somebody who found no place is taken to want one still: longer than clients wait before they try again at first, and shorter than
/// those take to come back that have given up.
pub const PLACE_WANTED: Duration = Duration::from_secs(10);

/// How long a connection is quiet before it is probed, so that dead peers free their streams.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_mins(1);

/// How long a probe may stay unanswered.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Connections that wait for `accept` on one core, at most.
pub const ACCEPT_BACKLOG: i32 = 1_024;

/// Files that the process should be allowed to have open, at least; with fewer it starts and warns. Half of them are for
/// data, of which an SST has 64 MiB at most: some 2 TB, more than most machines hold, and small files of many tablets
/// besides. Lower, and the warning comes when it is too late to plan; higher, and it comes with limits that last.
pub const OPEN_FILES_LOW: u64 = 1 << 16;

/// The part of the files that may be open which connections may be: half. Clients that open ever more connections leave
/// the engine what it writes with; a quarter would turn 300 clients away under the 1,024 that are common where nobody
/// may raise it.
pub const CONNECTIONS_PART_OF_OPEN_FILES: u64 = 2;

/// The part of `memory` that connections may take by themselves, without what is done by them: a sixteenth, which is most of what the process and its
/// allocator have. Two thousand for a gigabyte.
pub const CONNECTIONS_PART_OF_MEMORY: u64 = 16;

/// Bytes of a connection: 18 KB were measured of one that is quiet since its beginning; buffers grow with what comes and goes.
pub const CONNECTION_BYTES: u64 = 32 << 10;

/// Connections that any server lets in, as far as files allow: dozens of clients with a pool of channels each.
pub const CONNECTIONS_LOW: u64 = 256;

/// The part of the room for requests that change streams may take: an eighth, of which small requests, to which theirs belong, have a quarter. They
/// wait for hours: with more of them point reads would find no room, for good.
pub const CHANGE_STREAMS_PART: u64 = 8;

/// Bytes that a change stream counts for there, at least: its request, which is some three kilobytes, its future and its reader; one with many tokens
/// counts for what its request holds. There are two thousand at most with a `memory` of 1 GiB.
pub const CHANGE_STREAM_BYTES: u64 = 8 << 10;

/// When to try again to begin a change stream where there are too many: as long as it takes to look for one that is not needed any more.
pub const CHANGE_STREAMS_RETRY: Duration = Duration::from_secs(10);

/// How long a core accepts no connection after the system had no descriptor or memory for one. Without it the core would try
/// the same for ever and do nothing else.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How often it is told that connections were refused or could not be accepted.
pub const REFUSED_CONNECTIONS_INTERVAL: Duration = Duration::from_mins(1);

/// `SampleRowKeys` that each core has under way, at most; others wait. Each reads from the disk, a file at a time, for as long as its
/// table has files, so that more would take the disk from reads of rows.
pub const SAMPLINGS_MAX: usize = 2;

/// `ListBackups` under way at a time, in all; others wait. Each goes through all backups of its cluster, so that more would only take
/// threads and processors from others.
pub const BACKUP_LISTINGS_MAX: usize = 4;

/// `ListInstances`, `ListClusters` and `ListHotTablets` under way at a time, in all; others wait. Each goes through all instances of its project, or
/// through all that is known of hot tablets and all tables of its instance.
pub const INSTANCE_LISTINGS_MAX: usize = 4;

/// Threads for what blocks, at most, for each core: changes of the catalog, which take turns at one lock, drops of rows, [`SAMPLINGS_MAX`],
/// [`BACKUP_LISTINGS_MAX`], [`INSTANCE_LISTINGS_MAX`] and reads of old changes, of which there are [`CHANGE_DISK_READS_MAX`]. More would only wait. A flood of admin calls waits for half of them, and the rest is for what
/// does not wait for the catalog.
pub const BLOCKING_THREADS_MAX: usize = 64;

/// Threads that sweep: one for tables and what belongs to them, one for backups, which may take long.
pub const SWEEP_THREADS_MAX: usize = 2;

/// How long a thread for what blocks stays without work. Less, and requests that follow one another would start a thread each;
/// more, and what a flood of them needed would take memory for long.
pub const WORKER_IDLE: Duration = Duration::from_secs(10);

/// Tablets that one `DropRowRange` drops rows of at once, each on one of these threads: enough to share the disk's syncs, and few
/// beside what other requests need.
pub const TABLET_DROPS_MAX: usize = 4;

/// Cores that serve, at most; a guard against a mistyped configuration.
pub const CORES_MAX: usize = 1_024;

/// Characters of a backup's id, at most: Bigtable's documented limit.
pub const BACKUP_ID_CHARS_MAX: usize = 50;

/// How long a backup must be kept at least, and may be at most: Bigtable's documented limits.
pub const BACKUP_LIFE_MIN: Duration = Duration::from_hours(6);
/// See [`BACKUP_LIFE_MIN`].
pub const BACKUP_LIFE_MAX: Duration = Duration::from_hours(90 * 24);
/// The same for copies.
pub const BACKUP_COPY_LIFE_MAX: Duration = Duration::from_hours(30 * 24);

/// How long a backup must stay hot at least before it becomes a standard one by itself: Bigtable's documented limit.
pub const HOT_BACKUP_LIFE_MIN: Duration = Duration::from_hours(24);

/// How often a table is backed up whose policy does not say it: Bigtable's documented default, and its only value.
pub const AUTOMATED_BACKUP_FREQUENCY: Duration = Duration::from_hours(24);

/// How far the wall clock may be ahead of the newest sequence on disk at a start. Beyond, the directory was idle for long, or the
/// clock is wrong, and what time deletes would be gone within a minute.
pub const CLOCK_AHEAD_MAX: Duration = Duration::from_hours(30 * 24);

/// How far it may be behind. Beyond, it is wrong now or was wrong before.
pub const CLOCK_BEHIND_MAX: Duration = Duration::from_mins(1);

/// How often it is looked which backups have expired or are due.
pub const BACKUP_SWEEP_INTERVAL: Duration = Duration::from_mins(1);

/// Backups and restores that may be under way at a time: each has a thread, and most wait for a flush.
pub const BACKUP_JOBS_MAX: usize = 16;

/// When to try again where there are [`BACKUP_JOBS_MAX`]: the time of a flush.
pub const BACKUP_JOB_RETRY: Duration = Duration::from_secs(1);

/// How long an RPC waits for the operation that it began, so that the answer can be its outcome. Most backups and restores
/// take less; a client that waits longer begins to wonder.
pub const OPERATION_ANSWER_WAIT: Duration = Duration::from_millis(500);

/// Characters of a filter of backups, at most: a dozen comparisons of full names.
pub const BACKUP_FILTER_CHARS_MAX: usize = 4_096;

/// How deep parentheses of such a filter may be nested: bounds the stack that reads it.
pub const BACKUP_FILTER_DEPTH_MAX: usize = 32;

/// Fields that an order of backups may name: twice as many as there are.
pub const BACKUP_ORDER_FIELDS_MAX: usize = 14;

/// Characters of a page token of backups, at most: two for each byte of two names of the greatest length, and numbers.
pub const BACKUP_PAGE_TOKEN_CHARS_MAX: usize = 2 * (2 * RESOURCE_NAME_CHARS_MAX + 256);

/// Bytes of the descriptors of a schema bundle, at most: an answer with them must be under the 4 MiB that clients take, and has a name and a type twice,
/// an operation's name and a page's token beside them, 5 KiB together at worst.
pub const SCHEMA_BUNDLE_BYTES_MAX: usize = ADMIN_REQUEST_BYTES_MAX - (16 << 10);

/// Schema bundles of a table, at most. Each is up to [`SCHEMA_BUNDLE_BYTES_MAX`] and is held in memory.
pub const SCHEMA_BUNDLES_MAX: usize = 100;

/// Bytes of the descriptors of a table's schema bundles, at most: four of the largest, or a hundred of the usual hundred
/// kilobytes.
pub const SCHEMA_BUNDLES_TABLE_BYTES_MAX: usize = 16 << 20;

/// The same for all tables of an instance, those included that can be undeleted: a quarter of the catalog's 256 MiB, which
/// are for what people keep of everything.
pub const SCHEMA_BUNDLES_INSTANCE_BYTES_MAX: usize = 64 << 20;

/// How often a change stream is sent a heartbeat when its client does not say: as documented.
pub const HEARTBEAT: Duration = Duration::from_secs(5);

/// The shortest time between heartbeats that a client may ask for. Each tells of a position that is durable, and where nothing
/// is written, one such position a second is made.
pub const HEARTBEAT_MIN: Duration = Duration::from_millis(100);

/// The longest: a heartbeat keeps a position from growing older than a stream's retention, which is a day at least.
pub const HEARTBEAT_MAX: Duration = Duration::from_hours(12);

/// Bytes of changes that a change stream reads at a time from the disk, roughly, as they are in memory; of those that are there
/// already it takes what any answer has room for. With one change more, all that it holds beside the message that its client has not taken.
pub const CHANGE_PORTION_BYTES: usize = 256 << 10;

/// New partitions that a change stream which is closed names, at most: each has its rows twice, and keys of up to 4 KiB. Of a table with
/// more tablets, several are one partition, of which the next stream tells more.
pub const CHANGE_NEW_PARTITIONS_MAX: usize = 64;

/// Change streams that read from the disk at a time, in all; others wait. Each blocks a thread for as long as a portion takes.
pub const CHANGE_DISK_READS_MAX: usize = 4;

/// How far a client's clock may be ahead when it asks for a stream from now on.
pub const CLOCK_SKEW_MAX: Duration = Duration::from_secs(10);
