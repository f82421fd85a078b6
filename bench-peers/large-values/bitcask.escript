#!/usr/bin/env escript
%% -*- erlang -*-
%%! +sbt db -smp enable
%% Values of 10 KB in Basho's Bitcask: the same keys and values in the same order as peers.c, one process, nothing synced.
%% Prints a line of JSON for each phase.
%%
%%   bitcask.escript DIRECTORY ROWS OPERATIONS VALUE_BYTES
-mode(compile).
-define(MASK, 16#ffffffffffffffff).
-define(NOISE_BYTES, (4 bsl 20)).

main([Dir, Rows, Ops, ValueBytes]) ->
    ok = application:load(bitcask),
    %% Calls into C in place of messages to another process: the faster of its two ways.
    ok = application:set_env(bitcask, io_mode, nif),
    Noise = << <<(mix(I)):64/little>> || I <- lists:seq(0, ?NOISE_BYTES div 8 - 1) >>,
    N = list_to_integer(Rows), O = list_to_integer(Ops), Bytes = list_to_integer(ValueBytes),
    Ref = bitcask:open(Dir, [read_write]),
    Value = fun(Row) -> binary:part(Noise, Row * 7919 rem (?NOISE_BYTES - Bytes), Bytes) end,
    Put = fun(Row) -> ok = bitcask:put(Ref, key(Row), Value(Row)) end,
    Get = fun(Row) -> {ok, Found} = bitcask:get(Ref, key(Row)), true = Found =:= Value(Row) end,
    %% Reads draw from numbers that writes do not draw from: a log that is read as it was written, if only for a stretch, is read
    %% ahead by the system.
    Random = fun(Order) -> fun(I) -> mix(I + (Order bsl 32)) rem N end end,
    phase("load", N, fun(I) -> I end, Put),
    phase("write", O, Random(1), Put),
    phase("read", O, Random(2), Get),
    bitcask:close(Ref).

%% splitmix64: the same numbers in every driver.
mix(X0) ->
    X1 = (X0 + 16#9e3779b97f4a7c15) band ?MASK,
    X2 = ((X1 bxor (X1 bsr 30)) * 16#bf58476d1ce4e5b9) band ?MASK,
    X3 = ((X2 bxor (X2 bsr 27)) * 16#94d049bb133111eb) band ?MASK,
    X3 bxor (X3 bsr 31).

%% By hand: `io_lib` takes four times as long, a microsecond of each operation.
key(Row) ->
    Digits = integer_to_binary(mix(Row)),
    Zeros = binary:part(<<"00000000000000000000">>, 0, 20 - byte_size(Digits)),
    <<"user", Zeros/binary, Digits/binary>>.

phase(Name, Ops, RowOf, Op) ->
    Began = now_nanos(),
    {Took, Ended} = run(0, Ops, RowOf, Op, Began, []),
    All = lists:reverse(Took),
    Tenth = Ops div 10,
    First = lists:sublist(All, Tenth),
    Last = lists:sublist(Took, Tenth),
    io:format("{\"store\":\"bitcask\",\"phase\":\"~s\",\"ops\":~b,\"seconds\":~.3f,\"p99_micros\":~.1f,"
              "\"p99_first_micros\":~.1f,\"p99_last_micros\":~.1f}~n",
              [Name, Ops, (Ended - Began) / 1.0e9, p99(All), p99(First), p99(Last)]).

run(Ops, Ops, _, _, Last, Took) -> {Took, Last};
run(I, Ops, RowOf, Op, Last, Took) ->
    Op(RowOf(I)),
    Now = now_nanos(),
    run(I + 1, Ops, RowOf, Op, Now, [Now - Last | Took]).

now_nanos() -> erlang:monotonic_time(nanosecond).

p99(Took) ->
    Sorted = lists:sort(Took),
    lists:nth(trunc((length(Sorted) - 1) * 0.99) + 1, Sorted) / 1.0e3.
