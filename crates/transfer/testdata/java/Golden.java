// Writes the files of ../golden with the libraries that Google's templates write with, or reads files that
// `tepui export` wrote and prints what these libraries see in them:
//
//     mvn -q dependency:copy-dependencies -DoutputDirectory=lib
//     java -cp 'lib/*' Golden.java write ../golden
//     java -cp 'lib/*' Golden.java read FILE...
//
// The settings are the templates': Avro with snappy, Parquet by parquet-avro with snappy and otherwise its
// defaults, SequenceFiles of (ImmutableBytesWritable, Result) in compressed blocks; the other SequenceFiles are
// what HBase's own export writes with other settings. The rows are those of `golden_rows` in src/format/golden.rs.

import java.io.File;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.avro.Schema;
import org.apache.avro.file.CodecFactory;
import org.apache.avro.file.DataFileReader;
import org.apache.avro.file.DataFileWriter;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericRecord;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.CellUtil;
import org.apache.hadoop.hbase.KeyValue;
import org.apache.hadoop.hbase.client.Result;
import org.apache.hadoop.hbase.io.ImmutableBytesWritable;
import org.apache.hadoop.io.SequenceFile;
import org.apache.hadoop.io.compress.BZip2Codec;
import org.apache.hadoop.io.compress.CompressionCodec;
import org.apache.hadoop.io.compress.DefaultCodec;
import org.apache.hadoop.io.compress.Lz4Codec;
import org.apache.hadoop.io.compress.SnappyCodec;
import org.apache.parquet.avro.AvroParquetReader;
import org.apache.parquet.avro.AvroParquetWriter;
import org.apache.parquet.hadoop.ParquetWriter;
import org.apache.parquet.hadoop.metadata.CompressionCodecName;

public class Golden {
  static final Schema SCHEMA = new Schema.Parser().parse(
      "{\"name\":\"BigtableRow\",\"type\":\"record\",\"namespace\":\"com.google.cloud.teleport.bigtable\","
      + "\"fields\":[{\"name\":\"key\",\"type\":\"bytes\"},{\"name\":\"cells\",\"type\":{\"type\":\"array\",\"items\":"
      + "{\"name\":\"BigtableCell\",\"type\":\"record\",\"fields\":[{\"name\":\"family\",\"type\":\"string\"},"
      + "{\"name\":\"qualifier\",\"type\":\"bytes\"},{\"name\":\"timestamp\",\"type\":\"long\","
      + "\"logicalType\":\"timestamp-micros\"},{\"name\":\"value\",\"type\":\"bytes\"}]}}}]}");
  static final Schema CELL = SCHEMA.getField("cells").schema().getElementType();

  record C(String family, byte[] qualifier, long micros, byte[] value) {}
  record R(byte[] key, List<C> cells) {}

  static byte[] utf(String text) { return text.getBytes(StandardCharsets.UTF_8); }

  static List<R> rows() {
    List<R> rows = new ArrayList<>();
    rows.add(new R(utf("alpha"), List.of(
        new C("cf", utf("q"), 2_000_000L, utf("newer")),
        new C("cf", utf("q"), 1_000_000L, utf("older")),
        new C("cf", utf("r"), 0L, new byte[0]))));
    byte[] every = new byte[256];
    for (int i = 0; i < 256; i++) every[i] = (byte) i;
    rows.add(new R(new byte[] {0, (byte) 0xff, 0x7f}, List.of(
        new C("cf", new byte[0], 1_577_862_000_123_000L, every),
        new C("other-family", utf("s\u00e9jour"), 1_000L, utf("\u6c34")))));
    List<C> many = new ArrayList<>();
    for (int i = 0; i < 200; i++) {
      many.add(new C("wide", utf(String.format("q%04d", i)), 5_000L, utf("value " + i * i)));
    }
    rows.add(new R(utf("zeta"), many));
    return rows;
  }

  static GenericRecord avro(R row) {
    GenericRecord record = new GenericData.Record(SCHEMA);
    record.put("key", ByteBuffer.wrap(row.key));
    List<GenericRecord> cells = new ArrayList<>();
    for (C c : row.cells) {
      GenericRecord cell = new GenericData.Record(CELL);
      cell.put("family", c.family);
      cell.put("qualifier", ByteBuffer.wrap(c.qualifier));
      cell.put("timestamp", c.micros);
      cell.put("value", ByteBuffer.wrap(c.value));
      cells.add(cell);
    }
    record.put("cells", cells);
    return record;
  }

  static Result result(R row) {
    List<Cell> cells = new ArrayList<>();
    for (C c : row.cells) {
      cells.add(new KeyValue(row.key, utf(c.family), c.qualifier, c.micros / 1000, c.value));
    }
    return Result.create(cells);
  }

  static Result withDeletes(byte[] row) {
    byte[] f = utf("cf"), g = utf("g");
    List<Cell> cells = new ArrayList<>();
    cells.add(new KeyValue(row, f, utf("a"), 5, KeyValue.Type.DeleteColumn));
    cells.add(new KeyValue(row, f, utf("a"), 6, utf("lives")));
    cells.add(new KeyValue(row, f, utf("a"), 5, utf("gone")));
    cells.add(new KeyValue(row, f, utf("b"), 4, KeyValue.Type.Delete));
    cells.add(new KeyValue(row, f, utf("b"), 4, utf("gone")));
    cells.add(new KeyValue(row, f, utf("b"), 3, utf("lives")));
    cells.add(new KeyValue(row, g, null, 9, KeyValue.Type.DeleteFamily));
    cells.add(new KeyValue(row, g, utf("c"), 9, utf("gone")));
    cells.add(new KeyValue(row, g, utf("c"), 10, utf("lives")));
    return Result.create(cells);
  }

  static Configuration configuration() {
    Configuration conf = new Configuration();
    conf.setStrings("io.serializations", "org.apache.hadoop.io.serializer.WritableSerialization",
        "org.apache.hadoop.hbase.mapreduce.ResultSerialization");
    return conf;
  }

  static void sequence(File file, SequenceFile.CompressionType type, CompressionCodec codec, boolean deletes)
      throws Exception {
    Configuration conf = configuration();
    if (codec instanceof org.apache.hadoop.conf.Configurable c) c.setConf(conf);
    SequenceFile.Writer.Option compression =
        codec == null ? SequenceFile.Writer.compression(type) : SequenceFile.Writer.compression(type, codec);
    try (SequenceFile.Writer writer = SequenceFile.createWriter(conf,
        SequenceFile.Writer.file(new Path(file.toURI())),
        SequenceFile.Writer.keyClass(ImmutableBytesWritable.class),
        SequenceFile.Writer.valueClass(Result.class), compression)) {
      if (deletes) {
        writer.append(new ImmutableBytesWritable(utf("raw")), withDeletes(utf("raw")));
        return;
      }
      for (R row : rows()) {
        writer.append(new ImmutableBytesWritable(row.key), result(row));
        // A second block, and sync marks between records.
        if (row.key[0] == 0) writer.sync();
      }
    }
  }

  static void write(File dir) throws Exception {
    try (DataFileWriter<GenericRecord> writer = new DataFileWriter<>(new GenericDatumWriter<GenericRecord>(SCHEMA))) {
      writer.setCodec(CodecFactory.snappyCodec());
      writer.create(SCHEMA, new File(dir, "rows.avro"));
      for (R row : rows()) writer.append(avro(row));
    }
    File parquet = new File(dir, "rows.parquet");
    parquet.delete();
    try (ParquetWriter<GenericRecord> writer = AvroParquetWriter.<GenericRecord>builder(new Path(parquet.toURI()))
        .withSchema(SCHEMA).withCompressionCodec(CompressionCodecName.SNAPPY).withConf(configuration()).build()) {
      for (R row : rows()) writer.write(avro(row));
    }
    sequence(new File(dir, "plain.seq"), SequenceFile.CompressionType.NONE, null, false);
    sequence(new File(dir, "record.seq"), SequenceFile.CompressionType.RECORD, new DefaultCodec(), false);
    sequence(new File(dir, "block.seq"), SequenceFile.CompressionType.BLOCK, null, false);
    sequence(new File(dir, "snappy.seq"), SequenceFile.CompressionType.BLOCK, new SnappyCodec(), false);
    sequence(new File(dir, "lz4.seq"), SequenceFile.CompressionType.BLOCK, new Lz4Codec(), false);
    sequence(new File(dir, "bzip2.seq"), SequenceFile.CompressionType.RECORD, new BZip2Codec(), false);
    sequence(new File(dir, "deletes.seq"), SequenceFile.CompressionType.BLOCK, null, true);
    for (File crc : dir.listFiles((d, name) -> name.endsWith(".crc"))) crc.delete();
  }

  static String hex(byte[] bytes, int offset, int length) {
    StringBuilder text = new StringBuilder();
    for (int i = offset; i < offset + length; i++) text.append(String.format("%02x", bytes[i]));
    return text.toString();
  }

  static String hex(Object buffer) {
    ByteBuffer bytes = ((ByteBuffer) buffer).duplicate();
    byte[] copy = new byte[bytes.remaining()];
    bytes.get(copy);
    return hex(copy, 0, copy.length);
  }

  @SuppressWarnings("unchecked")
  static void print(GenericRecord row) {
    for (GenericRecord cell : (List<GenericRecord>) row.get("cells")) {
      System.out.println(String.join(" ", hex(row.get("key")), cell.get("family").toString(),
          hex(cell.get("qualifier")), cell.get("timestamp").toString(), hex(cell.get("value"))));
    }
  }

  static void read(File file) throws Exception {
    Path path = new Path(file.toURI());
    if (file.getName().endsWith(".avro")) {
      try (DataFileReader<GenericRecord> reader =
          new DataFileReader<>(file, new GenericDatumReader<GenericRecord>(null, SCHEMA))) {
        for (GenericRecord row : reader) print(row);
      }
    } else if (file.getName().endsWith(".parquet")) {
      try (var reader = AvroParquetReader.<GenericRecord>builder(path).withConf(configuration()).build()) {
        for (GenericRecord row = reader.read(); row != null; row = reader.read()) print(row);
      }
    } else {
      try (SequenceFile.Reader reader = new SequenceFile.Reader(configuration(), SequenceFile.Reader.file(path))) {
        for (Object key = reader.next((Object) null); key != null; key = reader.next((Object) null)) {
          Result result = (Result) reader.getCurrentValue((Object) null);
          byte[] row = ((ImmutableBytesWritable) key).copyBytes();
          for (Cell cell : result.rawCells()) {
            byte[] qualifier = CellUtil.cloneQualifier(cell), value = CellUtil.cloneValue(cell);
            System.out.println(String.join(" ", hex(row, 0, row.length),
                new String(CellUtil.cloneFamily(cell), StandardCharsets.UTF_8), hex(qualifier, 0, qualifier.length),
                Long.toString(cell.getTimestamp() * 1000), hex(value, 0, value.length)));
          }
        }
      }
    }
  }

  public static void main(String[] args) throws Exception {
    if (args[0].equals("write")) {
      write(new File(args[1]));
    } else {
      for (int i = 1; i < args.length; i++) read(new File(args[i]));
    }
  }
}
