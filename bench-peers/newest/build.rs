//! The archive of librocksdb/ was compiled with io_uring; linking it is left to whoever uses it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-lib=uring");
}
