package tepui;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.api.gax.rpc.AlreadyExistsException;
import com.google.api.gax.rpc.FailedPreconditionException;
import com.google.api.gax.rpc.NotFoundException;
import com.google.cloud.bigtable.admin.v2.BigtableInstanceAdminClient;
import com.google.cloud.bigtable.admin.v2.BigtableTableAdminClient;
import com.google.cloud.bigtable.admin.v2.models.AppProfile;
import com.google.cloud.bigtable.admin.v2.models.AppProfile.MultiClusterRoutingPolicy;
import com.google.cloud.bigtable.admin.v2.models.AppProfile.SingleClusterRoutingPolicy;
import com.google.cloud.bigtable.admin.v2.models.CreateAppProfileRequest;
import com.google.cloud.bigtable.admin.v2.models.CreateClusterRequest;
import com.google.cloud.bigtable.admin.v2.models.CreateInstanceRequest;
import com.google.cloud.bigtable.admin.v2.models.CreateTableRequest;
import com.google.cloud.bigtable.admin.v2.models.Instance;
import com.google.cloud.bigtable.admin.v2.models.StorageType;
import com.google.cloud.bigtable.admin.v2.models.UpdateAppProfileRequest;
import com.google.cloud.bigtable.admin.v2.models.UpdateInstanceRequest;
import com.google.cloud.bigtable.data.v2.BigtableDataClient;
import com.google.cloud.bigtable.data.v2.BigtableDataSettings;
import com.google.cloud.bigtable.data.v2.models.ReadModifyWriteRow;
import java.util.Map;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** The instance-admin client: instances, clusters and app profiles. */
class InstanceAdminTest {
  private static BigtableInstanceAdminClient admin;
  private String instance;

  @BeforeAll
  static void connect() throws Exception {
    admin = Server.instances();
  }

  @AfterAll
  static void close() {
    admin.close();
  }

  @BeforeEach
  void createInstance() {
    instance = Server.freshName("ji");
    admin.createInstance(
        CreateInstanceRequest.of(instance)
            .setDisplayName("Our data")
            .addLabel("team", "storage")
            .addCluster("one", "us-east1-b", 3, StorageType.SSD));
  }

  @AfterEach
  void deleteInstance() {
    if (admin.exists(instance)) {
      admin.deleteInstance(instance);
    }
  }

  @Test
  void instancesAreMadeListedChangedAndDeleted() {
    Instance got = admin.getInstance(instance);
    assertEquals("Our data", got.getDisplayName());
    assertEquals(Map.of("team", "storage"), got.getLabels());
    assertEquals(Instance.State.READY, got.getState());
    assertTrue(admin.listInstances().stream().anyMatch(i -> i.getId().equals(instance)));
    Instance changed = admin.updateInstance(UpdateInstanceRequest.of(instance).setDisplayName("Their data"));
    assertEquals("Their data", changed.getDisplayName());
    assertEquals(Map.of("team", "storage"), changed.getLabels());
    assertThrows(
        AlreadyExistsException.class,
        () -> admin.createInstance(CreateInstanceRequest.of(instance).addCluster("two", "us-east1-b", 1, StorageType.SSD)));
    admin.deleteInstance(instance);
    assertFalse(admin.exists(instance));
    assertThrows(NotFoundException.class, () -> admin.getInstance(instance));
  }

  @Test
  void anInstanceTakesItsTablesWithIt() throws Exception {
    try (BigtableTableAdminClient tables = Server.tables(instance)) {
      tables.createTable(CreateTableRequest.of("t").addFamily("f"));
      admin.deleteInstance(instance);
      createInstanceAgain();
      assertTrue(tables.listTables().isEmpty());
    }
  }

  private void createInstanceAgain() {
    admin.createInstance(CreateInstanceRequest.of(instance).addCluster("one", "us-east1-b", 1, StorageType.SSD));
  }

  @Test
  void clustersAreAddedResizedAndRemoved() {
    admin.createCluster(
        CreateClusterRequest.of(instance, "two").setZone("us-west1-a").setServeNodes(1).setStorageType(StorageType.SSD));
    assertEquals(2, admin.listClusters(instance).size());
    assertEquals(5, admin.resizeCluster(instance, "two", 5).getServeNodes());
    assertEquals("us-west1-a", admin.getCluster(instance, "two").getZone());
    admin.deleteCluster(instance, "two");
    assertThrows(NotFoundException.class, () -> admin.getCluster(instance, "two"));
  }

  @Test
  void aProfileDecidesWhetherRowsAreReadAndWrittenAtOnce() throws Exception {
    AppProfile made =
        admin.createAppProfile(
            CreateAppProfileRequest.of(instance, "careful")
                .setDescription("no transactions")
                .setRoutingPolicy(SingleClusterRoutingPolicy.of("one", false)));
    assertEquals("no transactions", made.getDescription());
    try (BigtableTableAdminClient tables = Server.tables(instance);
        BigtableDataClient data = dataThrough("careful")) {
      tables.createTable(CreateTableRequest.of("t").addFamily("f"));
      ReadModifyWriteRow increment = ReadModifyWriteRow.create("t", "r").increment("f", "n", 1);
      assertThrows(FailedPreconditionException.class, () -> data.readModifyWriteRow(increment));
      admin.updateAppProfile(
          UpdateAppProfileRequest.of(instance, "careful")
              .setRoutingPolicy(SingleClusterRoutingPolicy.of("one", true))
              .setIgnoreWarnings(true));
      assertEquals(1, data.readModifyWriteRow(increment).getCells().size());
    }
    admin.createAppProfile(
        CreateAppProfileRequest.of(instance, "any").setRoutingPolicy(MultiClusterRoutingPolicy.of()));
    assertTrue(admin.listAppProfiles(instance).stream().anyMatch(p -> p.getId().equals("any")));
    admin.deleteAppProfile(instance, "careful", true);
    assertThrows(NotFoundException.class, () -> admin.getAppProfile(instance, "careful"));
  }

  private BigtableDataClient dataThrough(String profile) throws Exception {
    String address = System.getenv("BIGTABLE_EMULATOR_HOST");
    int colon = address.lastIndexOf(':');
    return BigtableDataClient.create(
        BigtableDataSettings.newBuilderForEmulator(
                address.substring(0, colon), Integer.parseInt(address.substring(colon + 1)))
            .setProjectId(Server.PROJECT)
            .setInstanceId(instance)
            .setAppProfileId(profile)
            .build());
  }
}
