#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tower_lock_fuzz::entries::run("redis", data));
