//! Empty: the product is the `librocksdb.a` in the build directory of `librocksdb-sys`.
