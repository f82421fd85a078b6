/* Values of 10 KB in Tokyo Cabinet's hash database and in RocksDB with blob files: the same keys and values in the same
 * order as bitcask.escript, one thread, nothing synced. Prints a line of JSON for each phase.
 *
 *   peers tokyo|rocksdb DIRECTORY ROWS OPERATIONS VALUE_BYTES CACHE_BYTES
 */
#include <rocksdb/c.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tchdb.h>
#include <time.h>

enum { KEY_BYTES = 24, NOISE_BYTES = 4 << 20, TENTHS = 10, SMALL_PRIME = 7919 };

static unsigned char *noise;
static size_t value_bytes;

static TCHDB *tokyo;
static rocksdb_t *rocks;
static rocksdb_writeoptions_t *rocks_write;
static rocksdb_readoptions_t *rocks_read;

static void fail(const char *what, const char *why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(1);
}

/* splitmix64: the same numbers in every driver. */
static uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

static int64_t now_nanos(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void key_of(uint64_t row, char *key) {
  char text[KEY_BYTES + 1];
  snprintf(text, sizeof text, "user%020llu", (unsigned long long)mix(row));
  memcpy(key, text, KEY_BYTES);
}

static const unsigned char *value_of(uint64_t row) {
  return noise + row * SMALL_PRIME % (NOISE_BYTES - value_bytes);
}

static void put(uint64_t row) {
  char key[KEY_BYTES], *error = NULL;
  key_of(row, key);
  if (tokyo) {
    if (!tchdbput(tokyo, key, KEY_BYTES, value_of(row), (int)value_bytes))
      fail("tokyo put", tchdberrmsg(tchdbecode(tokyo)));
    return;
  }
  rocksdb_put(rocks, rocks_write, key, KEY_BYTES, (const char *)value_of(row), value_bytes, &error);
  if (error) fail("rocksdb put", error);
}

static void get(uint64_t row) {
  char key[KEY_BYTES], *error = NULL;
  void *value;
  size_t length = 0;
  key_of(row, key);
  if (tokyo) {
    int found = 0;
    value = tchdbget(tokyo, key, KEY_BYTES, &found);
    length = (size_t)found;
  } else {
    value = rocksdb_get(rocks, rocks_read, key, KEY_BYTES, &length, &error);
    if (error) fail("rocksdb get", error);
  }
  if (!value || length != value_bytes || memcmp(value, value_of(row), length) != 0)
    fail("get", "not the value that was written");
  tokyo ? tcfree(value) : rocksdb_free(value);
}

static int by_number(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

static double quantile(int64_t *took, uint64_t count, double part) {
  qsort(took, count, sizeof *took, by_number);
  return (double)took[(uint64_t)((double)(count - 1) * part)] / 1e3;
}

/* Rows one after the other where the order is 0. */
static void phase(const char *store, const char *name, uint64_t ops, uint64_t rows, uint64_t order, void (*op)(uint64_t)) {
  int64_t *took = malloc(ops * sizeof *took);
  if (!took) fail(name, "out of memory");
  int64_t began = now_nanos(), last = began;
  for (uint64_t i = 0; i < ops; i++) {
    op(order ? mix(i + (order << 32)) % rows : i);
    int64_t now = now_nanos();
    took[i] = now - last;
    last = now;
  }
  double seconds = (double)(last - began) / 1e9;
  uint64_t tenth = ops / TENTHS;
  double first = quantile(took, tenth, 0.99), end = quantile(took + (ops - tenth), tenth, 0.99);
  printf("{\"store\":\"%s\",\"phase\":\"%s\",\"ops\":%llu,\"seconds\":%.3f,\"p99_micros\":%.1f,\"p99_first_micros\":%.1f,\"p99_last_micros\":%.1f}\n",
         store, name, (unsigned long long)ops, seconds, quantile(took, ops, 0.99), first, end);
  fflush(stdout);
  free(took);
}

static void open_rocks(const char *path, size_t cache_bytes) {
  char *error = NULL;
  rocksdb_options_t *options = rocksdb_options_create();
  rocksdb_options_set_create_if_missing(options, 1);
  rocksdb_options_increase_parallelism(options, 2);
  /* A flush beside two compactions, and as many memtables, as Tepui has. */
  rocksdb_options_set_max_background_jobs(options, 3);
  rocksdb_options_set_max_write_buffer_number(options, 4);
  rocksdb_options_set_level_compaction_dynamic_level_bytes(options, 1);
  rocksdb_options_set_write_buffer_size(options, 64 << 20);
  rocksdb_options_set_compression(options, rocksdb_no_compression);
  /* Blob files as the project recommends them: garbage collected by compactions, files of the default size. */
  rocksdb_options_set_enable_blob_files(options, 1);
  rocksdb_options_set_min_blob_size(options, 4096);
  rocksdb_options_set_enable_blob_gc(options, 1);
  rocksdb_block_based_table_options_t *table = rocksdb_block_based_options_create();
  rocksdb_block_based_options_set_block_cache(table, rocksdb_cache_create_lru(cache_bytes));
  rocksdb_block_based_options_set_filter_policy(table, rocksdb_filterpolicy_create_bloom_full(10));
  rocksdb_options_set_block_based_table_factory(options, table);
  rocks = rocksdb_open(options, path, &error);
  if (error) fail("rocksdb open", error);
  rocks_write = rocksdb_writeoptions_create();
  rocks_read = rocksdb_readoptions_create();
}

static void open_tokyo(const char *directory, uint64_t rows) {
  char path[4096];
  snprintf(path, sizeof path, "%s/values.tch", directory);
  tokyo = tchdbnew();
  /* Buckets for twice the rows, records aligned to 1 KB, files beyond 2 GB; as its manual advises. */
  tchdbtune(tokyo, (int64_t)rows * 2, 10, 16, HDBTLARGE);
  if (!tchdbopen(tokyo, path, HDBOWRITER | HDBOCREAT)) fail("tokyo open", tchdberrmsg(tchdbecode(tokyo)));
}

int main(int count, char **arguments) {
  if (count != 7) fail(arguments[0], "tokyo|rocksdb DIRECTORY ROWS OPERATIONS VALUE_BYTES CACHE_BYTES");
  const char *store = arguments[1];
  uint64_t rows = strtoull(arguments[3], NULL, 10), ops = strtoull(arguments[4], NULL, 10);
  value_bytes = strtoull(arguments[5], NULL, 10);
  if (rows == 0 || ops < TENTHS || value_bytes == 0 || value_bytes >= NOISE_BYTES) fail("arguments", "too small or too large");
  noise = malloc(NOISE_BYTES);
  if (!noise) fail("noise", "out of memory");
  for (uint64_t i = 0; i < NOISE_BYTES / 8; i++) ((uint64_t *)(void *)noise)[i] = mix(i);
  if (strcmp(store, "tokyo") == 0)
    open_tokyo(arguments[2], rows);
  else
    open_rocks(arguments[2], strtoull(arguments[6], NULL, 10));
  phase(store, "load", rows, rows, 0, put);
  phase(store, "write", ops, rows, 1, put);
  /* An order of its own: a log that is read as it was written is read ahead by the system. */
  phase(store, "read", ops, rows, 2, get);
  if (tokyo)
    tchdbclose(tokyo);
  else
    rocksdb_close(rocks);
  return 0;
}
