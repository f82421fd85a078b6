// Package clients tests the server that BIGTABLE_EMULATOR_HOST names with the official Go client. The
// client's own, larger integration test is run by integration.py beside this file.
package clients

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const (
	project  = "tests"
	instance = "go"
)

// tableNames are unique within a run by their test, and between runs by the time.
var run = time.Now().UnixNano()

func TestMain(m *testing.M) {
	if os.Getenv("BIGTABLE_EMULATOR_HOST") == "" {
		fmt.Fprintln(os.Stderr, "BIGTABLE_EMULATOR_HOST is not set: run these tests by `make clients`")
		os.Exit(2)
	}
	os.Exit(m.Run())
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// open makes a table of the test's own, with the families f (one version kept) and g (all).
func open(t *testing.T, splits ...string) (context.Context, *bigtable.AdminClient, string, *bigtable.Table) {
	t.Helper()
	ctx := deadline(t)
	admin, err := bigtable.NewAdminClient(ctx, project, instance)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { admin.Close() })
	name := fmt.Sprintf("%.20s-%d", strings.ToLower(strings.TrimPrefix(t.Name(), "Test")), run)
	err = admin.CreateTableFromConf(ctx, &bigtable.TableConf{
		TableID:   name,
		SplitKeys: splits,
		Families: map[string]bigtable.GCPolicy{
			"f": bigtable.MaxVersionsPolicy(1),
			"g": bigtable.NoGcPolicy(),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	client, err := bigtable.NewClientWithConfig(ctx, project, instance, bigtable.ClientConfig{
		MetricsProvider: bigtable.NoopMetricsProvider{},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return ctx, admin, name, client.Open(name)
}

func set(family, column string, ts bigtable.Timestamp, value string) *bigtable.Mutation {
	m := bigtable.NewMutation()
	m.Set(family, column, ts, []byte(value))
	return m
}

func keys(t *testing.T, ctx context.Context, table *bigtable.Table, rows bigtable.RowSet, opts ...bigtable.ReadOption) []string {
	t.Helper()
	var got []string
	err := table.ReadRows(ctx, rows, func(r bigtable.Row) bool {
		got = append(got, r.Key())
		return true
	}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if status.Code(err) != want {
		t.Errorf("got %v, want the code %v", err, want)
	}
}

func TestSchemaComesBackAsGiven(t *testing.T) {
	ctx, admin, name, _ := open(t)
	policy := bigtable.UnionPolicy(bigtable.MaxVersionsPolicy(3), bigtable.MaxAgePolicy(48*time.Hour))
	if err := admin.CreateColumnFamilyWithConfig(ctx, name, "h", bigtable.Family{GCPolicy: policy}); err != nil {
		t.Fatal(err)
	}
	if err := admin.DeleteColumnFamily(ctx, name, "g"); err != nil {
		t.Fatal(err)
	}
	info, err := admin.TableInfo(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(info.Families)
	if want := []string{"f", "h"}; !slices.Equal(info.Families, want) {
		t.Fatalf("families %v, want %v", info.Families, want)
	}
	for _, f := range info.FamilyInfos {
		if f.Name == "h" && f.FullGCPolicy.String() != policy.String() {
			t.Errorf("policy %v, want %v", f.FullGCPolicy, policy)
		}
	}
	err = admin.CreateColumnFamily(ctx, name, "h")
	wantCode(t, err, codes.AlreadyExists)
}

func TestWriteReadAndFilter(t *testing.T) {
	ctx, _, _, table := open(t)
	for i, v := range []string{"one", "two", "three"} {
		if err := table.Apply(ctx, "row", set("g", "q", bigtable.Timestamp(1000*(i+1)), v)); err != nil {
			t.Fatal(err)
		}
	}
	row, err := table.ReadRow(ctx, "row", bigtable.RowFilter(bigtable.LatestNFilter(2)))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, item := range row["g"] {
		got = append(got, fmt.Sprintf("%s@%d=%s", item.Column, item.Timestamp, item.Value))
	}
	if want := []string{"g:q@3000=three", "g:q@2000=two"}; !slices.Equal(got, want) {
		t.Errorf("cells %v, want %v", got, want)
	}
	if row, err = table.ReadRow(ctx, "nobody"); err != nil || len(row) != 0 {
		t.Errorf("a missing row is %v, %v", row, err)
	}
}

func TestBulkWritesReportEachEntry(t *testing.T) {
	ctx, _, _, table := open(t)
	errs, err := table.ApplyBulk(ctx, []string{"a", "b", "c"}, []*bigtable.Mutation{
		set("f", "q", 1000, "v"), set("nope", "q", 1000, "v"), set("f", "q", 1000, "v"),
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(errs) != 3 || errs[0] != nil || errs[1] == nil || errs[2] != nil {
		t.Fatalf("statuses %v, want only the second to fail", errs)
	}
	wantCode(t, errs[1], codes.NotFound)
	if got, want := keys(t, ctx, table, bigtable.InfiniteRange("")), []string{"a", "c"}; !slices.Equal(got, want) {
		t.Errorf("rows %v, want %v", got, want)
	}
}

func TestScansForwardAndInReverse(t *testing.T) {
	ctx, _, _, table := open(t, "b", "d")
	for _, key := range []string{"a1", "b1", "b2", "c1", "d1"} {
		if err := table.Apply(ctx, key, set("f", "q", 1000, "v")); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		rows bigtable.RowSet
		opts []bigtable.ReadOption
		want []string
	}{
		{bigtable.InfiniteRange(""), nil, []string{"a1", "b1", "b2", "c1", "d1"}},
		{bigtable.PrefixRange("b"), nil, []string{"b1", "b2"}},
		{bigtable.NewRange("b2", "d1"), nil, []string{"b2", "c1"}},
		{bigtable.NewClosedOpenRange("b2", "d1"), nil, []string{"b2", "c1"}},
		{bigtable.NewOpenClosedRange("b2", "d1"), nil, []string{"c1", "d1"}},
		{bigtable.RowList{"d1", "zz", "a1"}, nil, []string{"a1", "d1"}},
		{bigtable.InfiniteRange(""), []bigtable.ReadOption{bigtable.LimitRows(4)}, []string{"a1", "b1", "b2", "c1"}},
		{bigtable.InfiniteRange(""), []bigtable.ReadOption{bigtable.ReverseScan()}, []string{"d1", "c1", "b2", "b1", "a1"}},
		{bigtable.PrefixRange("b"), []bigtable.ReadOption{bigtable.ReverseScan(), bigtable.LimitRows(1)}, []string{"b2"}},
	} {
		if got := keys(t, ctx, table, c.rows, c.opts...); !slices.Equal(got, c.want) {
			t.Errorf("%v %v: rows %v, want %v", c.rows, c.opts, got, c.want)
		}
	}
}

func TestConditionalMutation(t *testing.T) {
	ctx, _, _, table := open(t)
	if err := table.Apply(ctx, "row", set("f", "state", 1000, "new")); err != nil {
		t.Fatal(err)
	}
	var matched bool
	mutation := bigtable.NewCondMutation(bigtable.ValueFilter("new"), set("f", "state", 2000, "old"), nil)
	for _, want := range []bool{true, false} {
		if err := table.Apply(ctx, "row", mutation, bigtable.GetCondMutationResult(&matched)); err != nil {
			t.Fatal(err)
		}
		if want && !matched {
			t.Fatal("the condition did not match")
		}
		// The first pass left both versions: the second sees "new" only among old ones, so ask for the latest.
		latest := bigtable.ChainFilters(bigtable.LatestNFilter(1), bigtable.ValueFilter("new"))
		mutation = bigtable.NewCondMutation(latest, set("f", "state", 3000, "wrong"), nil)
	}
	if matched {
		t.Error("the condition matched an old version")
	}
}

func TestConcurrentIncrementsAreAllCounted(t *testing.T) {
	ctx, _, _, table := open(t)
	const workers, each = 8, 50
	var wait sync.WaitGroup
	failures := make([]error, workers)
	for w := range workers {
		wait.Go(func() {
			for range each {
				rmw := bigtable.NewReadModifyWrite()
				rmw.Increment("f", "n", 1)
				rmw.AppendValue("f", "s", []byte("x"))
				if _, err := table.ApplyReadModifyWrite(ctx, "row", rmw); err != nil {
					failures[w] = err
					return
				}
			}
		})
	}
	wait.Wait()
	if err := errors.Join(failures...); err != nil {
		t.Fatal(err)
	}
	row, err := table.ReadRow(ctx, "row", bigtable.RowFilter(bigtable.LatestNFilter(1)))
	if err != nil {
		t.Fatal(err)
	}
	cells := map[string][]byte{}
	for _, item := range row["f"] {
		cells[item.Column] = item.Value
	}
	if got := cells["f:n"]; len(got) != 8 || binary.BigEndian.Uint64(got) != workers*each {
		t.Errorf("counted %x, want %d", got, workers*each)
	}
	if got := len(cells["f:s"]); got != workers*each {
		t.Errorf("appended %d bytes, want %d", got, workers*each)
	}
}

// The client takes no row that spans messages, and on an emulator none that is larger than gRPC's 4 MiB.
func TestRowsUpToAMessageAreReadWithDefaultLimits(t *testing.T) {
	ctx, _, _, table := open(t)
	value := bytes.Repeat([]byte("v"), 700<<10)
	for _, key := range []string{"a", "b", "c"} {
		m := bigtable.NewMutation()
		for column := range 5 {
			m.Set("g", fmt.Sprint(column), 1000, value)
		}
		if err := table.Apply(ctx, key, m); err != nil {
			t.Fatal(err)
		}
	}
	cells := 0
	err := table.ReadRows(ctx, bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
		cells += len(r["g"])
		return true
	})
	if err != nil || cells != 15 {
		t.Errorf("read %d cells, %v; want 15", cells, err)
	}
}

func TestLargeCellIsReadByAClientThatAcceptsLargeMessages(t *testing.T) {
	ctx, _, name, table := open(t)
	value := bytes.Repeat([]byte("0123456789abcdef"), 10<<20/16)
	m := bigtable.NewMutation()
	m.Set("f", "q", 1000, value)
	if err := table.Apply(ctx, "row", m); err != nil {
		t.Fatal(err)
	}
	// The limit that the client sets itself where it talks to the real service.
	limit := grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1 << 28))
	plaintext := grpc.WithTransportCredentials(insecure.NewCredentials())
	conn, err := grpc.NewClient(os.Getenv("BIGTABLE_EMULATOR_HOST"), plaintext, limit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	config := bigtable.ClientConfig{MetricsProvider: bigtable.NoopMetricsProvider{}}
	client, err := bigtable.NewClientWithConfig(ctx, project, instance, config, option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	row, err := client.Open(name).ReadRow(ctx, "row")
	if err != nil {
		t.Fatal(err)
	}
	if len(row["f"]) != 1 || !bytes.Equal(row["f"][0].Value, value) {
		t.Error("10 MiB did not come back as written")
	}
}

func TestSampleRowKeysShowsSplits(t *testing.T) {
	ctx, _, _, table := open(t, "m", "t")
	got, err := table.SampleRowKeys(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(got, "m") || !slices.Contains(got, "t") {
		t.Errorf("sampled %q, want the splits m and t among them", got)
	}
}

func TestDropRowRange(t *testing.T) {
	ctx, admin, name, table := open(t)
	for _, key := range []string{"a1", "a2", "b1"} {
		if err := table.Apply(ctx, key, set("f", "q", 1000, "v")); err != nil {
			t.Fatal(err)
		}
	}
	if err := admin.DropRowRange(ctx, name, "a"); err != nil {
		t.Fatal(err)
	}
	if got, want := keys(t, ctx, table, bigtable.InfiniteRange("")), []string{"b1"}; !slices.Equal(got, want) {
		t.Errorf("rows %v, want %v", got, want)
	}
	if err := admin.DropAllRows(ctx, name); err != nil {
		t.Fatal(err)
	}
	if got := keys(t, ctx, table, bigtable.InfiniteRange("")); len(got) != 0 {
		t.Errorf("rows %v, want none", got)
	}
}

func TestUnknownTableIsNotFound(t *testing.T) {
	ctx, admin, _, _ := open(t)
	_, err := admin.TableInfo(ctx, "no-such-table")
	wantCode(t, err, codes.NotFound)
	wantCode(t, admin.DeleteTable(ctx, "no-such-table"), codes.NotFound)
}

// The example that the README shows, as it is there.
func TestExample(t *testing.T) {
	command := exec.Command("go", "run", ".")
	command.Dir = "../../../examples/go"
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if want := "greeting#1: Hello from Go\n"; string(out) != want {
		t.Errorf("printed %q, want %q", out, want)
	}
}

// Writes that a busy server refuses come back by themselves when its RetryInfo says so. tests/process runs this beside a
// server that refuses; any other takes the writes at once.
func TestWritesGetThroughRefusals(t *testing.T) {
	ctx, _, _, table := open(t)
	value := bytes.Repeat([]byte{0x5a}, 20<<10)
	var workers sync.WaitGroup
	failures := make(chan error, 8)
	for worker := range 8 {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for n := range 100 {
				mutation := bigtable.NewMutation()
				mutation.Set("f", "q", 1000, value)
				if err := table.Apply(ctx, fmt.Sprintf("row-%d-%d", worker, n), mutation); err != nil {
					failures <- fmt.Errorf("row %d of worker %d: %w", n, worker, err)
					return
				}
			}
			for n := range 10 {
				keys, mutations := make([]string, 100), make([]*bigtable.Mutation, 100)
				for i := range keys {
					keys[i], mutations[i] = fmt.Sprintf("bulk-%d-%d-%d", n, i, worker), bigtable.NewMutation()
					mutations[i].Set("f", "q", 1000, value)
				}
				errs, err := table.ApplyBulk(ctx, keys, mutations)
				if err != nil || errs != nil {
					failures <- fmt.Errorf("bulk %d of worker %d: %w: %v", n, worker, err, errs)
					return
				}
			}
		}()
	}
	workers.Wait()
	close(failures)
	for err := range failures {
		t.Error(err)
	}
	// Those that were acknowledged are there.
	if got := len(keys(t, ctx, table, bigtable.InfiniteRange(""), bigtable.RowFilter(bigtable.StripValueFilter()))); got != 8800 {
		t.Errorf("%d rows, want 8800", got)
	}
}
