package tepui;

import static com.google.cloud.bigtable.admin.v2.models.GCRules.GCRULES;
import static com.google.cloud.bigtable.data.v2.models.Filters.FILTERS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.api.gax.rpc.AbortedException;
import com.google.api.gax.rpc.AlreadyExistsException;
import com.google.api.gax.rpc.FailedPreconditionException;
import com.google.api.gax.rpc.NotFoundException;
import com.google.api.gax.rpc.PermissionDeniedException;
import com.google.api.gax.rpc.ServerStream;
import com.google.cloud.Identity;
import com.google.cloud.Policy;
import com.google.cloud.Role;
import com.google.cloud.bigtable.admin.v2.BigtableInstanceAdminClient;
import com.google.cloud.bigtable.admin.v2.BigtableTableAdminClient;
import com.google.cloud.bigtable.admin.v2.models.AuthorizedView;
import com.google.cloud.bigtable.admin.v2.models.Backup;
import com.google.cloud.bigtable.admin.v2.models.CreateAuthorizedViewRequest;
import com.google.cloud.bigtable.admin.v2.models.CreateBackupRequest;
import com.google.cloud.bigtable.admin.v2.models.CreateInstanceRequest;
import com.google.cloud.bigtable.admin.v2.models.CreateTableRequest;
import com.google.cloud.bigtable.admin.v2.models.FamilySubsets;
import com.google.cloud.bigtable.admin.v2.models.ModifyColumnFamiliesRequest;
import com.google.cloud.bigtable.admin.v2.models.RestoreTableRequest;
import com.google.cloud.bigtable.admin.v2.models.RestoredTableResult;
import com.google.cloud.bigtable.admin.v2.models.StorageType;
import com.google.cloud.bigtable.admin.v2.models.SubsetView;
import com.google.cloud.bigtable.admin.v2.models.Table;
import com.google.cloud.bigtable.admin.v2.models.UpdateAuthorizedViewRequest;
import com.google.cloud.bigtable.admin.v2.models.UpdateBackupRequest;
import com.google.cloud.bigtable.admin.v2.models.UpdateTableRequest;
import com.google.cloud.bigtable.data.v2.BigtableDataClient;
import com.google.cloud.bigtable.data.v2.models.AuthorizedViewId;
import com.google.cloud.bigtable.data.v2.models.ChangeStreamMutation;
import com.google.cloud.bigtable.data.v2.models.ChangeStreamRecord;
import com.google.cloud.bigtable.data.v2.models.CloseStream;
import com.google.cloud.bigtable.data.v2.models.Query;
import com.google.cloud.bigtable.data.v2.models.Range.ByteStringRange;
import com.google.cloud.bigtable.data.v2.models.ReadChangeStreamQuery;
import com.google.cloud.bigtable.data.v2.models.Row;
import com.google.cloud.bigtable.data.v2.models.RowMutation;
import com.google.protobuf.ByteString;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.threeten.bp.Duration;
import org.threeten.bp.Instant;
import org.threeten.bp.temporal.ChronoUnit;

/** The table-admin client: tables, families, backups, views, change streams and policies. */
class TableAdminTest {
  private static final String INSTANCE = Server.freshName("ja");
  private static final String CLUSTER = "ja-cluster";
  private static BigtableTableAdminClient admin;
  private static BigtableDataClient data;
  private String table;

  @BeforeAll
  static void connect() throws Exception {
    try (BigtableInstanceAdminClient instances = Server.instances()) {
      instances.createInstance(
          CreateInstanceRequest.of(INSTANCE).addCluster(CLUSTER, "us-east1-b", 1, StorageType.SSD));
    }
    admin = Server.tables(INSTANCE);
    data = Server.data(INSTANCE);
  }

  @AfterAll
  static void close() {
    data.close();
    admin.close();
  }

  @BeforeEach
  void createTable() {
    table = Server.freshName("table");
    admin.createTable(CreateTableRequest.of(table).addFamily("f").addFamily("g"));
  }

  private void put(String key, String family, String qualifier, String value) {
    data.mutateRow(RowMutation.create(table, key).setCell(family, qualifier, 1000, value));
  }

  @Test
  void tablesAreListedAndGoneAfterTheirDeletion() {
    assertTrue(admin.exists(table));
    assertTrue(admin.listTables().contains(table));
    assertThrows(AlreadyExistsException.class, () -> admin.createTable(CreateTableRequest.of(table)));
    admin.deleteTable(table);
    assertFalse(admin.exists(table));
    assertThrows(NotFoundException.class, () -> admin.getTable(table));
  }

  @Test
  void aProtectedTableStaysUntilTheProtectionGoes() {
    Table updated = admin.updateTable(UpdateTableRequest.of(table).setDeletionProtection(true));
    assertTrue(updated.isDeletionProtected());
    assertThrows(FailedPreconditionException.class, () -> admin.deleteTable(table));
    assertTrue(admin.exists(table));
    admin.updateTable(UpdateTableRequest.of(table).setDeletionProtection(false));
    admin.deleteTable(table);
  }

  @Test
  void automatedBackupsAreTurnedOnAndOff() {
    assertFalse(admin.getTable(table).isAutomatedBackupEnabled());
    Table on =
        admin.updateTable(UpdateTableRequest.of(table).setAutomatedBackup(Duration.ofDays(7), Duration.ofDays(1)));
    for (Table told : List.of(on, admin.getTable(table))) {
      assertTrue(told.isAutomatedBackupEnabled());
      assertEquals(Duration.ofDays(7).getSeconds(), told.getAutomatedBackupPolicy().toProto().getRetentionPeriod().getSeconds());
      assertEquals(Duration.ofDays(1).getSeconds(), told.getAutomatedBackupPolicy().toProto().getFrequency().getSeconds());
    }
    Table off = admin.updateTable(UpdateTableRequest.of(table).disableAutomatedBackup());
    assertFalse(off.isAutomatedBackupEnabled());
    assertFalse(admin.getTable(table).isAutomatedBackupEnabled());
  }

  @Test
  void familiesComeGoAndKeepTheirRules() {
    Table changed =
        admin.modifyFamilies(
            ModifyColumnFamiliesRequest.of(table)
                .addFamily("h", GCRULES.intersection().rule(GCRULES.maxVersions(3)).rule(GCRULES.maxAge(Duration.ofDays(1))))
                .updateFamily("f", GCRULES.maxVersions(1))
                .dropFamily("g"));
    assertEquals(2, changed.getColumnFamilies().size());
    assertEquals(
        GCRULES.intersection().rule(GCRULES.maxVersions(3)).rule(GCRULES.maxAge(Duration.ofDays(1))).toProto(),
        admin.getTable(table).getColumnFamilies().stream()
            .filter(f -> f.getId().equals("h"))
            .findFirst()
            .orElseThrow()
            .getGCRule()
            .toProto());
  }

  @Test
  void rowRangesAreDropped() {
    put("a-1", "f", "q", "v");
    put("b-1", "f", "q", "v");
    admin.dropRowRange(table, "a-");
    admin.awaitReplication(table);
    assertNull(data.readRow(table, "a-1"));
    assertTrue(data.exists(table, "b-1"));
    admin.dropAllRows(table);
    assertFalse(data.exists(table, "b-1"));
  }

  @Test
  void aBackupHoldsWhatWasThereWhenItWasMade() throws Exception {
    put("r", "f", "q", "before");
    Instant expires = Instant.now().plus(8, ChronoUnit.HOURS).truncatedTo(ChronoUnit.SECONDS);
    String id = Server.freshName("backup");
    Backup made =
        admin.createBackup(CreateBackupRequest.of(CLUSTER, id).setSourceTableId(table).setExpireTime(expires));
    assertEquals(expires, made.getExpireTime());
    assertEquals(Backup.State.READY, made.getState());
    assertTrue(admin.listBackups(CLUSTER).contains(id));

    data.mutateRow(RowMutation.create(table, "r").deleteRow());
    admin.deleteTable(table);
    String restored = Server.freshName("restored");
    RestoredTableResult result = admin.restoreTable(RestoreTableRequest.of(CLUSTER, id).setTableId(restored));
    assertEquals(restored, result.getTable().getId());
    if (result.getOptimizeRestoredTableOperationToken() != null) {
      admin.awaitOptimizeRestoredTable(result.getOptimizeRestoredTableOperationToken());
    }
    assertEquals("before", data.readRow(restored, "r").getCells("f", "q").get(0).getValue().toStringUtf8());

    Instant later = expires.plus(1, ChronoUnit.HOURS);
    assertEquals(later, admin.updateBackup(UpdateBackupRequest.of(CLUSTER, id).setExpireTime(later)).getExpireTime());
    admin.deleteBackup(CLUSTER, id);
    assertThrows(NotFoundException.class, () -> admin.getBackup(CLUSTER, id));
    assertTrue(data.exists(restored, "r"));
  }

  @Test
  void aViewShowsAndTakesItsPartAlone() {
    put("user-1", "f", "name", "Ada");
    put("user-1", "f", "secret", "1815");
    put("order-1", "f", "name", "lamp");
    String id = Server.freshName("view");
    AuthorizedView made =
        admin.createAuthorizedView(
            CreateAuthorizedViewRequest.of(table, id)
                .setDeletionProtection(true)
                .setAuthorizedViewType(
                    SubsetView.create()
                        .addRowPrefix("user-")
                        .setFamilySubsets("f", FamilySubsets.create().addQualifier("name"))));
    assertTrue(made.isDeletionProtected());
    assertEquals(List.of(id), admin.listAuthorizedViews(table));

    AuthorizedViewId view = AuthorizedViewId.of(table, id);
    List<Row> rows = new ArrayList<>();
    data.readRows(Query.create(view)).forEach(rows::add);
    assertEquals(1, rows.size());
    assertEquals(1, rows.get(0).getCells().size());
    assertEquals("Ada", rows.get(0).getCells().get(0).getValue().toStringUtf8());
    data.mutateRow(RowMutation.create(view, "user-2").setCell("f", "name", 1000, "Grace"));
    assertTrue(data.exists(table, "user-2"));
    assertThrows(
        PermissionDeniedException.class,
        () -> data.mutateRow(RowMutation.create(view, "order-2").setCell("f", "name", 1000, "table")));
    assertThrows(
        PermissionDeniedException.class,
        () -> data.mutateRow(RowMutation.create(view, "user-1").setCell("f", "secret", 1000, "0")));

    assertThrows(FailedPreconditionException.class, () -> admin.deleteAuthorizedView(table, id));
    admin.updateAuthorizedView(UpdateAuthorizedViewRequest.of(table, id).setDeletionProtection(false));
    admin.deleteAuthorizedView(table, id);
    assertThrows(NotFoundException.class, () -> data.readRow(view, "user-1"));
  }

  @Test
  void aChangeStreamTellsWhatWasWrittenInOrder() throws Exception {
    admin.updateTable(UpdateTableRequest.of(table).addChangeStreamRetention(Duration.ofDays(2)));
    assertEquals(Duration.ofDays(2), admin.getTable(table).getChangeStreamRetention());
    java.time.Instant start = java.time.Instant.now();
    put("r", "f", "q", "one");
    put("r", "f", "q", "two");
    data.mutateRow(RowMutation.create(table, "r").deleteFamily("f"));
    List<ByteStringRange> partitions = new ArrayList<>();
    data.generateInitialChangeStreamPartitions(table).forEach(partitions::add);
    assertEquals(1, partitions.size());
    List<ChangeStreamMutation> changes = new ArrayList<>();
    boolean closed = false;
    ServerStream<ChangeStreamRecord> stream =
        data.readChangeStream(
            ReadChangeStreamQuery.create(table)
                .streamPartition(partitions.get(0))
                .startTime(start)
                .endTime(java.time.Instant.now().plusSeconds(1)));
    for (ChangeStreamRecord record : stream) {
      if (record instanceof ChangeStreamMutation) {
        changes.add((ChangeStreamMutation) record);
      }
      closed |= record instanceof CloseStream;
    }
    assertTrue(closed);
    assertEquals(3, changes.size());
    assertEquals("r", changes.get(0).getRowKey().toStringUtf8());
    assertFalse(changes.get(1).getCommitTime().isBefore(changes.get(0).getCommitTime()));
    admin.updateTable(UpdateTableRequest.of(table).disableChangeStreamRetention());
    assertThrows(
        FailedPreconditionException.class,
        () -> data.generateInitialChangeStreamPartitions(table).forEach(p -> {}));
  }

  @Test
  void policiesAreKeptWithTheirEtags() {
    Policy policy = admin.getIamPolicy(table);
    assertNotNull(policy.getEtag());
    Policy given = policy.toBuilder().addIdentity(Role.of("bigtable.user"), Identity.user("someone@example.com")).build();
    Policy set = admin.setIamPolicy(table, given);
    assertEquals(given.getBindings(), set.getBindings());
    assertNotNull(set.getEtag());
    assertNotEquals(policy.getEtag(), set.getEtag());
    assertEquals(set, admin.getIamPolicy(table));
    // Who goes by what was there before does not undo what was set meanwhile.
    assertThrows(AbortedException.class, () -> admin.setIamPolicy(table, policy));
    assertEquals(set, admin.getIamPolicy(table));
    assertEquals(policy.getBindings(), admin.setIamPolicy(table, set.toBuilder().setBindings(policy.getBindings()).build()).getBindings());
    assertEquals(List.of("bigtable.tables.readRows"), admin.testIamPermission(table, "bigtable.tables.readRows"));
  }
}
