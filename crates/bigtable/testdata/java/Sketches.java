// Writes the sketches of ../sketches with Google's own library, or reads sketches that Tepui wrote and says what that
// library makes of them. In this directory:
//
//     mvn -q dependency:copy-dependencies -DoutputDirectory=lib
//     java -cp 'lib/*' Sketches.java write ../sketches
//
//     SKETCHES_DIR=/tmp/sketches cargo test -p tepui-bigtable sketches_for_others -- --ignored
//     java -cp 'lib/*' Sketches.java read /tmp/sketches
//
// A file's name says what its sketch has seen: the type, the first number and the one behind the last, and the two
// precisions, of which a sparse one of 0 means that the sketch was never sparse. Integers are seven times the number, texts `user-` and
// the number. `src/sketch/zetasketch_tests.rs` reads the names in the same way.

import com.google.zetasketch.HyperLogLogPlusPlus;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;

public class Sketches {
  static final List<String> NAMES = List.of(
      "int64-0-1-15-20",
      "int64-0-1000-15-20",
      "int64-500-1500-15-20",
      "int64-0-1500-15-20",
      "int64-0-22000-15-20",
      "int64-0-22650-15-20",
      "int64-0-40000-15-20",
      "int64-30000-60000-15-20",
      "int64-0-60000-15-20",
      "text-0-1-15-20",
      "text-0-1000-15-20",
      "text-0-40000-15-20",
      "int64-0-1000-16-21",
      "int64-0-1000-18-25",
      "int64-0-40000-16-0");

  static HyperLogLogPlusPlus<?> sketch(String name) {
    String[] parts = name.split("-");
    int from = Integer.parseInt(parts[1]);
    int to = Integer.parseInt(parts[2]);
    int sparse = Integer.parseInt(parts[4]);
    HyperLogLogPlusPlus.Builder builder =
        new HyperLogLogPlusPlus.Builder().normalPrecision(Integer.parseInt(parts[3]));
    builder = sparse == 0 ? builder.noSparseMode() : builder.sparsePrecision(sparse);
    if (parts[0].equals("text")) {
      HyperLogLogPlusPlus<String> sketch = builder.buildForStrings();
      for (int i = from; i < to; i++) {
        sketch.add("user-" + i);
      }
      return sketch;
    }
    HyperLogLogPlusPlus<Long> sketch = builder.buildForLongs();
    for (int i = from; i < to; i++) {
      sketch.add(7L * i);
    }
    return sketch;
  }

  static long counted(HyperLogLogPlusPlus<?> sketch, byte[] merged) {
    sketch.merge(merged);
    return sketch.longResult();
  }

  /** Whether a count is that of the library's own sketch, or as near as a dense sketch is to a sparse one. */
  static boolean isSame(long count, long own) {
    return Math.abs(count - own) <= own / 100;
  }

  static boolean read(Path file) throws IOException {
    String name = file.getFileName().toString();
    byte[] given = Files.readAllBytes(file);
    byte[] own = sketch(name).serializeToByteArray();
    String more = name.startsWith("text") ? "text-900-30000-15-20" : "int64-900-30000-15-20";
    long count = sketch(name).longResult();
    long together = counted(sketch(more), own);
    long countOfGiven = HyperLogLogPlusPlus.forProto(given).longResult();
    long intoOwn = counted(sketch(more), given);
    long intoGiven =
        counted(HyperLogLogPlusPlus.forProto(given), sketch(more).serializeToByteArray());
    System.out.printf("%-26s %s; counts %d, own %d; merged with %s %d and %d, own %d%n", name,
        Arrays.equals(given, own) ? "same bytes" : given.length + " bytes, own " + own.length,
        countOfGiven, count, more, intoOwn, intoGiven, together);
    return isSame(countOfGiven, count) && isSame(intoOwn, together) && isSame(intoGiven, together);
  }

  public static void main(String[] args) throws IOException {
    Path directory = Path.of(args[1]);
    if (args[0].equals("write")) {
      Files.createDirectories(directory);
      for (String name : NAMES) {
        Files.write(directory.resolve(name), sketch(name).serializeToByteArray());
      }
      return;
    }
    boolean same = true;
    try (var files = Files.list(directory)) {
      for (Path file : files.sorted().toList()) {
        same &= read(file);
      }
    }
    System.exit(same ? 0 : 1);
  }
}
