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
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.NavigableSet;
import java.util.Set;
import java.util.TreeSet;
import java.util.Vector;
import site.ycsb.ByteArrayByteIterator;
import site.ycsb.ByteIterator;
import site.ycsb.DB;
import site.ycsb.DBException;
import site.ycsb.Status;
import site.ycsb.Utils;
import site.ycsb.measurements.Measurements;

/**
 * YCSB's binding: a field is a column of the family {@code cf}, and a record is a row. Columns keep one
 * version by reading the newest. The server is the one that BIGTABLE_EMULATOR_HOST names.
 *
 * <p>YCSB compares what it reads with what a key and a field determine ({@code dataintegrity}), but for fields that are missing, which fail
 * a read here, and for scans: those are compared here, and reported as {@code VERIFY-SCAN}.
 */
public final class YcsbBigtable extends DB {
  private static final String FAMILY = "cf";
  private static final String INSTANCE = "ycsb";
  private static final String VERIFY_SCAN = "VERIFY-SCAN";
  // The client keeps channels and threads: one for all of YCSB's threads.
  private static BigtableDataClient shared;
  private static int users;
  // The keys that were loaded, of which none may be missing from a scan.
  private static NavigableSet<String> loaded;

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

  private static synchronized NavigableSet<String> loaded(long records) {
    if (loaded == null) {
      loaded = new TreeSet<>();
      for (long number = 0; number < records; number++) {
        loaded.add("user" + Utils.hash(number));
      }
    }
    return loaded;
  }

  private BigtableDataClient client;
  // Where values are compared: all keys, how many fields a record has, and how long they are.
  private NavigableSet<String> keys;
  private int fieldCount;
  private int fieldLength;

  @Override
  public void init() throws DBException {
    if (Boolean.parseBoolean(getProperties().getProperty("dataintegrity"))) {
      keys = loaded(Long.parseLong(getProperties().getProperty("recordcount")));
      fieldCount = Integer.parseInt(getProperties().getProperty("fieldcount", "10"));
      fieldLength = Integer.parseInt(getProperties().getProperty("fieldlength", "100"));
    }
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
    // YCSB compares the fields that came, and does not miss any.
    boolean whole = keys == null || row.getCells().size() == fieldsOf(fields);
    if (!whole) {
      System.err.println("read of " + key + ": " + row.getCells().size() + " fields");
    }
    return whole ? Status.OK : Status.UNEXPECTED_STATE;
  }

  /** How many fields a record has of those that are asked for. */
  private int fieldsOf(Set<String> fields) {
    return fields == null ? fieldCount : fields.size();
  }

  @Override
  public Status scan(
      String table, String start, int count, Set<String> fields, Vector<HashMap<String, ByteIterator>> result) {
    List<Row> rows = new ArrayList<>();
    client.readRows(Query.create(table).range(start, null).limit(count).filter(newest(fields))).forEach(rows::add);
    for (Row row : rows) {
      HashMap<String, ByteIterator> record = new HashMap<>();
      copy(row, record);
      result.add(record);
    }
    if (keys == null) {
      return Status.OK;
    }
    String wrong = wrong(rows, start, count, fieldsOf(fields));
    Status status = wrong == null ? Status.OK : Status.UNEXPECTED_STATE;
    if (wrong != null) {
      System.err.println("scan of " + count + " from " + start + ": " + wrong);
    }
    Measurements.getMeasurements().measure(VERIFY_SCAN, 0);
    Measurements.getMeasurements().reportStatus(VERIFY_SCAN, status);
    return status;
  }

  /** What is wrong with a scan from a row that is there: null for nothing. */
  private String wrong(List<Row> rows, String start, int count, int columns) {
    if (rows.isEmpty() || rows.size() > count) {
      return rows.size() + " rows";
    }
    String last = null;
    for (Row row : rows) {
      String key = row.getKey().toStringUtf8();
      if (last == null ? !key.equals(start) : key.compareTo(last) <= 0) {
        return key + " behind " + last;
      }
      last = key;
      if (row.getCells().size() != columns) {
        return key + " has " + row.getCells().size() + " fields";
      }
      for (RowCell cell : row.getCells()) {
        String field = cell.getQualifier().toStringUtf8();
        if (!cell.getValue().toStringUtf8().equals(value(key, field))) {
          return key + " has in " + field + " " + cell.getValue().toStringUtf8();
        }
      }
    }
    // As far as it came, or to the end where that is less than was asked for.
    Set<String> missing = new TreeSet<>(rows.size() < count ? keys.tailSet(start) : keys.subSet(start, true, last, true));
    rows.forEach(row -> missing.remove(row.getKey().toStringUtf8()));
    return missing.isEmpty() ? null : missing + " missing";
  }

  /** The value that CoreWorkload determines by key and field. */
  private String value(String key, String field) {
    StringBuilder value = new StringBuilder(key).append(':').append(field);
    while (value.length() < fieldLength) {
      value.append(':');
      value.append(value.toString().hashCode());
    }
    value.setLength(fieldLength);
    return value.toString();
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
