package tepui;

import static com.google.cloud.bigtable.data.v2.models.Filters.FILTERS;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.api.core.ApiFuture;
import com.google.api.gax.batching.Batcher;
import com.google.api.gax.rpc.InvalidArgumentException;
import com.google.api.gax.rpc.NotFoundException;
import com.google.cloud.bigtable.admin.v2.BigtableTableAdminClient;
import com.google.cloud.bigtable.admin.v2.models.CreateTableRequest;
import com.google.cloud.bigtable.admin.v2.models.Type;
import com.google.cloud.bigtable.data.v2.BigtableDataClient;
import com.google.cloud.bigtable.data.v2.models.BulkMutation;
import com.google.cloud.bigtable.data.v2.models.ConditionalRowMutation;
import com.google.cloud.bigtable.data.v2.models.KeyOffset;
import com.google.cloud.bigtable.data.v2.models.Mutation;
import com.google.cloud.bigtable.data.v2.models.MutateRowsException;
import com.google.cloud.bigtable.data.v2.models.Query;
import com.google.cloud.bigtable.data.v2.models.ReadModifyWriteRow;
import com.google.cloud.bigtable.data.v2.models.Row;
import com.google.cloud.bigtable.data.v2.models.RowCell;
import com.google.cloud.bigtable.data.v2.models.RowMutation;
import com.google.cloud.bigtable.data.v2.models.RowMutationEntry;
import com.google.protobuf.ByteString;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** The data client: what is written is read back, in order, filtered, conditionally and in bulk. */
class DataTest {
  private static final String INSTANCE = "java";
  private static BigtableDataClient data;
  private static BigtableTableAdminClient admin;
  private String table;

  @BeforeAll
  static void connect() throws Exception {
    data = Server.data(INSTANCE);
    admin = Server.tables(INSTANCE);
  }

  @AfterAll
  static void close() {
    data.close();
    admin.close();
  }

  @BeforeEach
  void createTable() {
    table = Server.freshName("data");
    admin.createTable(
        CreateTableRequest.of(table)
            .addFamily("f")
            .addFamily("g")
            .addFamily("sum", Type.int64Sum())
            .addSplit(ByteString.copyFromUtf8("row-050")));
  }

  private void loadHundredRows() {
    BulkMutation all = BulkMutation.create(table);
    for (int i = 0; i < 100; i++) {
      all.add(RowMutationEntry.create(key(i)).setCell("f", "q", 1000, "value-" + i));
    }
    data.bulkMutateRows(all);
  }

  private static String key(int i) {
    return String.format("row-%03d", i);
  }

  private List<String> keys(Query query) {
    List<String> keys = new ArrayList<>();
    for (Row row : data.readRows(query)) {
      keys.add(row.getKey().toStringUtf8());
    }
    return keys;
  }

  @Test
  void cellsComeBackWithTheirTimestampsNewestFirst() {
    data.mutateRow(
        RowMutation.create(table, "r").setCell("f", "q", 1000, "old").setCell("f", "q", 2000, "new"));
    List<RowCell> cells = data.readRow(table, "r").getCells("f", "q");
    assertEquals(2, cells.size());
    assertEquals("new", cells.get(0).getValue().toStringUtf8());
    assertEquals(2000, cells.get(0).getTimestamp());
    assertEquals("old", cells.get(1).getValue().toStringUtf8());
  }

  @Test
  void cellsWrittenWithoutATimestampHaveTheClientsClockInMilliseconds() throws Exception {
    long before = System.currentTimeMillis() * 1000;
    try (BigtableDataClient plain = Server.dataAsForTheService(INSTANCE)) {
      plain.mutateRow(RowMutation.create(table, "one").setCell("f", "q", "1"));
      plain.bulkMutateRows(
          BulkMutation.create(table)
              .add(RowMutationEntry.create("bulk").setCell("f", "q", "2")));
      boolean found =
          plain.checkAndMutateRow(
              ConditionalRowMutation.create(table, "checked")
                  .then(Mutation.create().setCell("f", "q", "3"))
                  .otherwise(Mutation.create().setCell("f", "q", "4")));
      assertFalse(found);
      long after = (System.currentTimeMillis() + 1) * 1000;
      for (String row : List.of("one", "bulk", "checked")) {
        List<RowCell> cells = plain.readRow(table, row).getCells("f", "q");
        assertEquals(1, cells.size(), row);
        long timestamp = cells.get(0).getTimestamp();
        assertEquals(0, timestamp % 1000, row);
        assertTrue(before <= timestamp && timestamp <= after, row + ": " + timestamp);
      }
      // One that somebody chose must fit.
      assertThrows(
          InvalidArgumentException.class,
          () -> plain.mutateRow(RowMutation.create(table, "one").setCell("f", "q", 1234, "no")));
    }
  }

  @Test
  void anAbsentRowIsNull() {
    assertNull(data.readRow(table, "nothing"));
    assertFalse(data.exists(table, "nothing"));
  }

  @Test
  void deletesHideWhatTheyNameAlone() {
    data.mutateRow(
        RowMutation.create(table, "r")
            .setCell("f", "a", 1000, "1")
            .setCell("f", "b", 1000, "2")
            .setCell("g", "c", 1000, "3"));
    data.mutateRow(RowMutation.create(table, "r").deleteCells("f", "a"));
    assertTrue(data.readRow(table, "r").getCells("f", "a").isEmpty());
    assertEquals(1, data.readRow(table, "r").getCells("f", "b").size());
    data.mutateRow(RowMutation.create(table, "r").deleteFamily("f"));
    assertTrue(data.readRow(table, "r").getCells("f").isEmpty());
    data.mutateRow(RowMutation.create(table, "r").deleteRow());
    assertNull(data.readRow(table, "r"));
  }

  @Test
  void rangesPrefixesLimitsAndOrder() {
    loadHundredRows();
    assertEquals(100, keys(Query.create(table)).size());
    assertEquals(List.of("row-010", "row-011"), keys(Query.create(table).range("row-010", "row-012")));
    assertEquals(10, keys(Query.create(table).prefix("row-07")).size());
    assertEquals(List.of("row-000", "row-001"), keys(Query.create(table).limit(2)));
    assertEquals(List.of("row-099", "row-098"), keys(Query.create(table).reversed(true).limit(2)));
    assertEquals(
        List.of("row-003", "row-040"), keys(Query.create(table).rowKey("row-040").rowKey("row-003")));
  }

  @Test
  void pagesGoOnWhereTheLastOneEnded() {
    loadHundredRows();
    Query.QueryPaginator pages = Query.create(table).createPaginator(30);
    List<String> all = new ArrayList<>();
    boolean more = true;
    while (more) {
      List<String> page = keys(pages.getNextQuery());
      all.addAll(page);
      more = !page.isEmpty() && pages.advance(ByteString.copyFromUtf8(page.get(page.size() - 1)));
    }
    assertEquals(100, all.size());
    assertEquals("row-099", all.get(99));
  }

  @Test
  void filtersChainInterleaveAndBranch() {
    data.mutateRow(
        RowMutation.create(table, "r")
            .setCell("f", "apple", 1000, "1")
            .setCell("f", "apple", 2000, "2")
            .setCell("f", "pear", 1000, "3")
            .setCell("g", "plum", 1000, "4"));
    Row chained =
        data.readRow(
            table,
            "r",
            FILTERS
                .chain()
                .filter(FILTERS.family().exactMatch("f"))
                .filter(FILTERS.qualifier().regex("app.*"))
                .filter(FILTERS.limit().cellsPerColumn(1)));
    assertEquals(1, chained.getCells().size());
    assertEquals("2", chained.getCells().get(0).getValue().toStringUtf8());
    Row both =
        data.readRow(
            table,
            "r",
            FILTERS
                .interleave()
                .filter(FILTERS.chain().filter(FILTERS.qualifier().exactMatch("plum")).filter(FILTERS.label("l")))
                .filter(FILTERS.value().strip()));
    assertEquals(5, both.getCells().size());
    assertEquals(1, both.getCells().stream().filter(c -> c.getLabels().equals(List.of("l"))).count());
    Row branch =
        data.readRow(
            table,
            "r",
            FILTERS
                .condition(FILTERS.value().exactMatch("4"))
                .then(FILTERS.family().exactMatch("g"))
                .otherwise(FILTERS.block()));
    assertEquals("plum", branch.getCells().get(0).getQualifier().toStringUtf8());
  }

  @Test
  void conditionsReadAndWriteAtOnce() {
    ConditionalRowMutation mutation =
        ConditionalRowMutation.create(table, "r")
            .condition(FILTERS.qualifier().exactMatch("q"))
            .then(Mutation.create().setCell("f", "was", 1000, "there"))
            .otherwise(Mutation.create().setCell("f", "q", 1000, "first"));
    assertFalse(data.checkAndMutateRow(mutation));
    assertTrue(data.checkAndMutateRow(mutation));
    assertEquals("there", data.readRow(table, "r").getCells("f", "was").get(0).getValue().toStringUtf8());
  }

  @Test
  void incrementsAndAppendsAnswerTheNewCells() {
    data.readModifyWriteRow(ReadModifyWriteRow.create(table, "r").increment("f", "n", 40));
    Row row =
        data.readModifyWriteRow(
            ReadModifyWriteRow.create(table, "r").increment("f", "n", 2).append("f", "text", "abc"));
    assertEquals(42, row.getCells("f", "n").get(0).getValue().asReadOnlyByteBuffer().getLong());
    assertEquals("abc", row.getCells("f", "text").get(0).getValue().toStringUtf8());
  }

  @Test
  void sumsAddUp() {
    data.mutateRow(RowMutation.create(table, "r").addToCell("sum", "n", 0, 40));
    data.mutateRow(RowMutation.create(table, "r").addToCell("sum", "n", 0, 2));
    assertEquals(
        42, data.readRow(table, "r").getCells("sum", "n").get(0).getValue().asReadOnlyByteBuffer().getLong());
  }

  @Test
  void batchersWriteAndReadEverything() throws Exception {
    List<ApiFuture<Void>> writes = new ArrayList<>();
    try (Batcher<RowMutationEntry, Void> batcher = data.newBulkMutationBatcher(table)) {
      for (int i = 0; i < 5000; i++) {
        writes.add(batcher.add(RowMutationEntry.create("bulk-" + i).setCell("f", "q", 1000, "v" + i)));
      }
    }
    for (ApiFuture<Void> write : writes) {
      write.get(10, TimeUnit.SECONDS);
    }
    try (Batcher<ByteString, Row> reads = data.newBulkReadRowsBatcher(table)) {
      List<ApiFuture<Row>> rows = new ArrayList<>();
      for (int i = 0; i < 5000; i += 7) {
        rows.add(reads.add(ByteString.copyFromUtf8("bulk-" + i)));
      }
      reads.flush();
      for (int i = 0; i < rows.size(); i++) {
        Row row = rows.get(i).get(10, TimeUnit.SECONDS);
        assertEquals("v" + i * 7, row.getCells().get(0).getValue().toStringUtf8());
      }
    }
  }

  @Test
  void aRowOfManyMegabytesComesBackByteByByte() {
    byte[] value = new byte[9 << 20];
    new Random(7).nextBytes(value);
    data.mutateRow(
        RowMutation.create(table, "big")
            .setCell("f", ByteString.copyFromUtf8("q"), 1000, ByteString.copyFrom(value)));
    assertArrayEquals(value, data.readRow(table, "big").getCells().get(0).getValue().toByteArray());
  }

  @Test
  void sampledKeysEndWithTheEndOfTheTable() {
    List<KeyOffset> samples = data.sampleRowKeys(table);
    assertTrue(samples.stream().anyMatch(s -> s.getKey().toStringUtf8().equals("row-050")));
    assertTrue(samples.get(samples.size() - 1).getKey().isEmpty());
  }

  @Test
  void errorsAreTheServicesOwn() {
    assertThrows(NotFoundException.class, () -> data.readRow("no-such-table", "r"));
    assertThrows(
        NotFoundException.class,
        () -> data.mutateRow(RowMutation.create("no-such-table", "r").setCell("f", "q", "v")));
    assertThrows(
        InvalidArgumentException.class,
        () -> data.mutateRow(RowMutation.create(table, "r").setCell("f", "q", 1, "not whole milliseconds")));
    MutateRowsException partly =
        assertThrows(
            MutateRowsException.class,
            () ->
                data.bulkMutateRows(
                    BulkMutation.create(table)
                        .add(RowMutationEntry.create("good").setCell("f", "q", 1000, "v"))
                        .add(RowMutationEntry.create("bad").setCell("missing", "q", 1000, "v"))));
    assertEquals(1, partly.getFailedMutations().size());
    assertEquals(1, partly.getFailedMutations().get(0).getIndex());
    assertTrue(data.exists(table, "good"));
  }
}
