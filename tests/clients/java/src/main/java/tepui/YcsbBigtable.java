package tepui;

import com.google.cloud.bigtable.admin.v2.BigtableTableAdminClient;
import com.google.cloud.bigtable.admin.v2.BigtableTableAdminSettings;
import com.google.cloud.bigtable.admin.v2.models.CreateTableRequest;
import com.google.cloud.bigtable.data.v2.BigtableDataClient;
import com.google.cloud.bigtable.data.v2.BigtableDataSettings;
import com.google.cloud.bigtable.data.v2.models.Filters;
import com.google.cloud.bigtable.data.v2.models.Query;
import com.google.cloud.bigtable.data.v2.models.Row;
import com.google.cloud.bigtable.data.v2.models.RowCell;
import com.google.cloud.bigtable.data.v2.models.RowMutation;
import com.google.protobuf.ByteString;
import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.Vector;
import site.ycsb.ByteArrayByteIterator;
import site.ycsb.ByteIterator;
import site.ycsb.DB;
import site.ycsb.DBException;
import site.ycsb.Status;

/**
 * YCSB's binding: a field is a column of the family {@code cf}, and a record is a row. Columns keep one
 * version by reading the newest. The server is the one that BIGTABLE_EMULATOR_HOST names.
 */
public final class YcsbBigtable extends DB {
  private static final String FAMILY = "cf";
  private static final String INSTANCE = "ycsb";
  // The client keeps channels and threads: one for all of YCSB's threads.
  private static BigtableDataClient shared;
  private static int users;

  private static synchronized BigtableDataClient acquire(String table) throws IOException {
    if (users++ == 0) {
      String address = System.getenv("BIGTABLE_EMULATOR_HOST");
      int colon = address.lastIndexOf(':');
      String host = address.substring(0, colon);
      int port = Integer.parseInt(address.substring(colon + 1));
      try (BigtableTableAdminClient admin =
          BigtableTableAdminClient.create(
              BigtableTableAdminSettings.newBuilderForEmulator(host, port)
                  .setProjectId("tests")
                  .setInstanceId(INSTANCE)
                  .build())) {
        if (!admin.exists(table)) {
          admin.createTable(CreateTableRequest.of(table).addFamily(FAMILY));
        }
      }
      shared =
          BigtableDataClient.create(
              BigtableDataSettings.newBuilderForEmulator(host, port)
                  .setProjectId("tests")
                  .setInstanceId(INSTANCE)
                  .build());
    }
    return shared;
  }

  private static synchronized void release() {
    if (--users == 0) {
      shared.close();
    }
  }

  private BigtableDataClient client;

  @Override
  public void init() throws DBException {
    try {
      client = acquire(getProperties().getProperty("table", "usertable"));
    } catch (IOException error) {
      throw new DBException(error);
    }
  }

  @Override
  public void cleanup() {
    release();
  }

  @Override
  public Status read(String table, String key, Set<String> fields, Map<String, ByteIterator> result) {
    Row row = client.readRow(table, key, newest(fields));
    if (row == null) {
      return Status.NOT_FOUND;
    }
    copy(row, result);
    return Status.OK;
  }

  @Override
  public Status scan(
      String table, String start, int count, Set<String> fields, Vector<HashMap<String, ByteIterator>> result) {
    for (Row row : client.readRows(Query.create(table).range(start, null).limit(count).filter(newest(fields)))) {
      HashMap<String, ByteIterator> record = new HashMap<>();
      copy(row, record);
      result.add(record);
    }
    return Status.OK;
  }

  @Override
  public Status update(String table, String key, Map<String, ByteIterator> values) {
    RowMutation mutation = RowMutation.create(table, key);
    for (Map.Entry<String, ByteIterator> value : values.entrySet()) {
      mutation.setCell(
          FAMILY, ByteString.copyFromUtf8(value.getKey()), ByteString.copyFrom(value.getValue().toArray()));
    }
    client.mutateRow(mutation);
    return Status.OK;
  }

  @Override
  public Status insert(String table, String key, Map<String, ByteIterator> values) {
    return update(table, key, values);
  }

  @Override
  public Status delete(String table, String key) {
    client.mutateRow(RowMutation.create(table, key).deleteRow());
    return Status.OK;
  }

  private static Filters.Filter newest(Set<String> fields) {
    Filters.ChainFilter chain = Filters.FILTERS.chain();
    if (fields != null) {
      Filters.InterleaveFilter columns = Filters.FILTERS.interleave();
      fields.forEach(field -> columns.filter(Filters.FILTERS.qualifier().exactMatch(field)));
      chain.filter(columns);
    }
    return chain.filter(Filters.FILTERS.limit().cellsPerColumn(1));
  }

  private static void copy(Row row, Map<String, ByteIterator> result) {
    for (RowCell cell : row.getCells()) {
      result.put(
          cell.getQualifier().toStringUtf8(), new ByteArrayByteIterator(cell.getValue().toByteArray()));
    }
  }
}
