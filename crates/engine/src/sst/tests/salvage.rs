//! What a walk hands out of files that are sound, and of one whose checksums hold and whose rows do not.

use super::*;

/// The keys of all records that a walk hands out, and the places of what is lost.
pub(super) fn walked(reader: &SstReader) -> (Vec<Vec<u8>>, Vec<Lost>) {
    let (mut keys, mut lost) = (Vec::new(), Vec::new());
    let mut note = |piece: Piece<'_>| {
        match piece {
            Piece::Record(_, entry) => keys.push(entry.key.bytes().to_vec()),
            Piece::Lost(piece) => lost.push(piece),
            _ => {}
        }
        Ok(())
    };
    reader.walk(true, &mut note).unwrap();
    (keys, lost)
}

proptest! {
    #[test]
    fn a_sound_file_hands_out_every_record(
        records in prop_oneof![samples(1..200), table()],
        options in any_options(),
    ) {
        prop_assume!(!records.is_empty());
        let (keys, lost) = walked(&written(&records, options));
        assert!(lost.is_empty(), "{lost:?}");
        assert!(keys.iter().eq(records.iter().map(|record| &record.key)));
    }
}

/// A file of many blocks, in several partitions.
fn rows() -> (TestFiles, Vec<Sample>) {
    let row = |i: usize| cell(&format!("row-{i:04}"), 1, "q", 5, b"value");
    let (files, records) = (TestFiles::default(), (0..500).map(row).collect::<Vec<_>>());
    write(&files, &records, tiny(Compression::None));
    (files, records)
}

/// The partitions of a sound file with the number of the first block of each, its blocks, and the place of the block of each record.
fn laid_out(files: &TestFiles) -> (Vec<(PartitionInfo, usize)>, Vec<BlockInfo>, Vec<u64>) {
    let (mut partitions, mut blocks, mut offsets) = (Vec::new(), Vec::new(), Vec::new());
    let mut note = |piece: Piece<'_>| {
        match piece {
            Piece::Partition(partition) => partitions.push((partition, blocks.len())),
            Piece::Block(block) => blocks.push(block),
            Piece::Record(offset, _) => offsets.push(offset),
            _ => {}
        }
        Ok(())
    };
    open(files, 1 << 20).unwrap().walk(true, &mut note).unwrap();
    (partitions, blocks, offsets)
}

/// Changes the first byte of the first row that a block, or an index partition, says in full, and its checksum.
fn change_row(files: &TestFiles, offset: u64, len: u64, byte: u8) {
    let (start, end) = (offset as usize, (offset + len) as usize);
    let mut data = files.contents(&path())[start..end - frame::TRAILER_LEN].to_vec();
    let at = data.windows(4).position(|window| window == b"row-").unwrap();
    data[at] = byte;
    put_frame(files, offset, &data);
}

#[test]
fn keys_that_do_not_belong_into_their_block_cost_that_block_alone() {
    let (files, records) = rows();
    let (_, blocks, offsets) = laid_out(&files);
    let sound = files.contents(&path());
    for block in [&blocks[0], &blocks[blocks.len() / 2], blocks.last().unwrap()] {
        files.put(&path(), sound.clone());
        change_row(&files, block.offset, block.bytes, b'~');
        let reader = open(&files, 1 << 20).unwrap();
        assert_eq!(reader.verify(&mut |_| ()).unwrap_err().kind(), ErrorKind::Corruption);
        let (keys, lost) = walked(&reader);
        assert_eq!(lost.len(), 1, "{lost:?}");
        assert_eq!((lost[0].offset, lost[0].records), (block.offset, block.records));
        assert_eq!((&lost[0].from_row, &lost[0].to_row), (&block.from_row, &block.to_row));
        let left = records.iter().zip(&offsets).filter(|(_, offset)| **offset != block.offset);
        assert!(keys.iter().eq(left.map(|(record, _)| &record.key)));
    }
}

#[test]
fn a_partition_whose_separators_are_too_small_costs_no_record() {
    let (files, records) = rows();
    let (partitions, ..) = laid_out(&files);
    let (partition, _) = &partitions[partitions.len() / 2];
    change_row(&files, partition.offset, partition.bytes, b'a');
    let reader = open(&files, 1 << 20).unwrap();
    assert_eq!(reader.verify(&mut |_| ()).unwrap_err().kind(), ErrorKind::Corruption);
    let (keys, lost) = walked(&reader);
    assert!(lost.is_empty(), "{lost:?}");
    assert!(keys.iter().eq(records.iter().map(|record| &record.key)));
}

#[test]
fn blocks_under_a_damaged_partition_are_found_without_it() {
    for compression in [Compression::None, Compression::Lz4, Compression::ZstdDict(1)] {
        let row = |i: usize| cell(&format!("row-{i:05}"), 1, "q", 5, b"value");
        let (files, records) = (TestFiles::default(), (0..3000).map(row).collect::<Vec<_>>());
        write(&files, &records, tiny(compression));
        let (partitions, blocks, offsets) = laid_out(&files);
        let sound = files.contents(&path());
        let flip = |offset: u64| {
            let mut bytes = files.contents(&path());
            bytes[offset as usize + 3] ^= 1;
            files.put(&path(), bytes);
        };
        for (partition, first_block) in
            [&partitions[0], &partitions[partitions.len() / 2], partitions.last().unwrap()]
        {
            files.put(&path(), sound.clone());
            flip(partition.offset);
            let (keys, lost) = walked(&open(&files, 1 << 20).unwrap());
            assert!(keys.iter().eq(records.iter().map(|record| &record.key)), "{compression:?}");
            assert_eq!(lost.len(), 1, "{lost:?}");
            assert_eq!((lost[0].offset, lost[0].bytes), (partition.offset, partition.bytes));
            assert_eq!(lost[0].records, 0);

            let block = &blocks[first_block + partition.blocks as usize - 1];
            flip(block.offset);
            let (keys, lost) = walked(&open(&files, 1 << 20).unwrap());
            let left = records.iter().zip(&offsets).filter(|(_, offset)| **offset != block.offset);
            assert!(keys.iter().eq(left.map(|(record, _)| &record.key)), "{compression:?}");
            assert_eq!((lost.len(), lost[0].records), (1, block.records), "{lost:?}");
            assert!(lost[0].from_row <= block.from_row && lost[0].to_row >= block.to_row);
        }
    }
}
