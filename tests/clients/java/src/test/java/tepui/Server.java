package tepui;

import com.google.api.gax.core.NoCredentialsProvider;
import com.google.cloud.bigtable.admin.v2.BigtableInstanceAdminClient;
import com.google.cloud.bigtable.admin.v2.BigtableInstanceAdminSettings;
import com.google.cloud.bigtable.admin.v2.BigtableTableAdminClient;
import com.google.cloud.bigtable.admin.v2.BigtableTableAdminSettings;
import com.google.cloud.bigtable.data.v2.BigtableDataClient;
import com.google.cloud.bigtable.data.v2.BigtableDataSettings;
import com.google.cloud.bigtable.data.v2.stub.EnhancedBigtableStubSettings;
import com.google.cloud.bigtable.data.v2.stub.metrics.NoopMetricsProvider;
import io.grpc.ManagedChannelBuilder;
import java.io.IOException;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicInteger;

/** Clients on the server that BIGTABLE_EMULATOR_HOST names, and names that nothing else uses. */
final class Server {
  static final String PROJECT = "tests";
  private static final String RUN = UUID.randomUUID().toString().substring(0, 8);
  private static final AtomicInteger NUMBERS = new AtomicInteger();
  private static final String HOST;
  private static final int PORT;

  static {
    String address = System.getenv("BIGTABLE_EMULATOR_HOST");
    if (address == null) {
      throw new IllegalStateException("BIGTABLE_EMULATOR_HOST is not set: run this by `make clients`");
    }
    int colon = address.lastIndexOf(':');
    HOST = address.substring(0, colon);
    PORT = Integer.parseInt(address.substring(colon + 1));
  }

  private Server() {}

  /** A name that no other test, nor an earlier run on the same server, has used. */
  static String freshName(String kind) {
    return kind + "-" + RUN + "-" + NUMBERS.incrementAndGet();
  }

  static BigtableDataClient data(String instance) throws IOException {
    return BigtableDataClient.create(
        BigtableDataSettings.newBuilderForEmulator(HOST, PORT)
            .setProjectId(PROJECT)
            .setInstanceId(instance)
            .build());
  }

  /** A client as for the service, but without credentials or TLS: in emulator mode some of what a client sends is changed. */
  static BigtableDataClient dataAsForTheService(String instance) throws IOException {
    BigtableDataSettings.Builder settings =
        BigtableDataSettings.newBuilder()
            .setProjectId(PROJECT)
            .setInstanceId(instance)
            .setMetricsProvider(NoopMetricsProvider.INSTANCE);
    settings
        .stubSettings()
        .setEndpoint(HOST + ":" + PORT)
        .setCredentialsProvider(NoCredentialsProvider.create())
        .setTransportChannelProvider(
            EnhancedBigtableStubSettings.defaultGrpcTransportProviderBuilder()
                .setChannelConfigurator(ManagedChannelBuilder::usePlaintext)
                .build());
    return BigtableDataClient.create(settings.build());
  }

  static BigtableTableAdminClient tables(String instance) throws IOException {
    return BigtableTableAdminClient.create(
        BigtableTableAdminSettings.newBuilderForEmulator(HOST, PORT)
            .setProjectId(PROJECT)
            .setInstanceId(instance)
            .build());
  }

  static BigtableInstanceAdminClient instances() throws IOException {
    return BigtableInstanceAdminClient.create(
        BigtableInstanceAdminSettings.newBuilderForEmulator(HOST, PORT).setProjectId(PROJECT).build());
  }
}
