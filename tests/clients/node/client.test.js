// Tests the server that BIGTABLE_EMULATOR_HOST names with the official Node client.

'use strict';

const assert = require('node:assert/strict');
const {after, beforeEach, test} = require('node:test');
const {Bigtable} = require('@google-cloud/bigtable');

assert.ok(process.env.BIGTABLE_EMULATOR_HOST, 'BIGTABLE_EMULATOR_HOST is not set: run these tests by `make clients`');

const NOT_FOUND = 5;
const ALREADY_EXISTS = 6;

const bigtable = new Bigtable({projectId: 'tests'});
const instance = bigtable.instance('node');
const run = `${process.pid}-${Date.now()}`;
let number = 0;
let table;

beforeEach(async () => {
  table = instance.table(`t-${run}-${number++}`);
  await table.create({families: ['f', {name: 'g', rule: {versions: 1}}]});
});

after(() => bigtable.close());

const rowsOf = async options => (await table.getRows(options))[0].map(row => row.id);

const insert = keys =>
  table.insert(keys.map(key => ({key, data: {f: {q: {value: key, timestamp: 1000}}}})));

test('a table is listed, its families shown, and it is gone after delete', async () => {
  const [tables] = await instance.getTables();
  assert.ok(tables.some(t => t.id === table.id));
  const [families] = await table.getFamilies();
  assert.deepEqual(families.map(f => f.id).sort(), ['f', 'g']);
  await assert.rejects(table.create({families: []}), {code: ALREADY_EXISTS});
  await table.delete();
  assert.deepEqual(await table.exists(), [false]);
});

test('cells come back as written, newest first', async () => {
  await table.insert([
    {key: 'r', data: {f: {q: {value: 'old', timestamp: 1000}}}},
    {key: 'r', data: {f: {q: {value: 'new', timestamp: 2000}}}},
  ]);
  const [row] = await table.row('r').get();
  assert.deepEqual(row.data.f.q.map(c => [c.value, Number(c.timestamp)]), [['new', 2000], ['old', 1000]]);
});

test('a text that is larger than a message comes back as it was', async () => {
  const text = 'a' + '€'.repeat(1_100_000);
  await table.insert([{key: 'r', data: {f: {q: {value: text, timestamp: 1000}}}}]);
  const [row] = await table.row('r').get();
  // Not by `equal`, whose message would have both.
  assert.ok(row.data.f.q[0].value === text);
});

test('a missing row is an error that says so', async () => {
  await assert.rejects(table.row('nobody').get(), /nobody/);
  assert.deepEqual(await table.row('nobody').exists(), [false]);
});

test('scans by range, prefix, keys and limit', async () => {
  await insert(['a1', 'a2', 'b1', 'c1']);
  assert.deepEqual(await rowsOf({}), ['a1', 'a2', 'b1', 'c1']);
  assert.deepEqual(await rowsOf({start: 'a2', end: 'b1'}), ['a2', 'b1']);
  assert.deepEqual(await rowsOf({prefix: 'a'}), ['a1', 'a2']);
  assert.deepEqual(await rowsOf({keys: ['c1', 'zz', 'a1']}), ['a1', 'c1']);
  assert.deepEqual(await rowsOf({limit: 3}), ['a1', 'a2', 'b1']);
});

test('filters choose rows, columns and values', async () => {
  await insert(['x1', 'x2', 'y1']);
  assert.deepEqual(await rowsOf({filter: {row: /x.*/}}), ['x1', 'x2']);
  assert.deepEqual(await rowsOf({filter: [{family: 'f'}, {value: /.1/}]}), ['x1', 'y1']);
  assert.deepEqual(await rowsOf({filter: {column: 'absent'}}), []);
});

test('a bulk write tells which entry failed', async () => {
  await assert.rejects(
    table.insert([
      {key: 'good', data: {f: {q: 'v'}}},
      {key: 'bad', data: {nope: {q: 'v'}}},
    ]),
    error => {
      assert.equal(error.name, 'PartialFailureError');
      assert.equal(error.errors.length, 1);
      assert.equal(error.errors[0].code, NOT_FOUND);
      return true;
    },
  );
  assert.deepEqual(await rowsOf({}), ['good']);
});

test('increments and appends', async () => {
  const row = table.row('counter');
  await row.increment('f:n', 5);
  await row.increment('f:n', -2);
  await row.createRules([{column: 'f:s', append: 'ab'}, {column: 'f:s', append: 'cd'}]);
  const [got] = await row.get();
  assert.equal(Number(got.data.f.n[0].value), 3);
  assert.equal(got.data.f.s[0].value, 'abcd');
});

test('a conditional write takes the branch of its filter', async () => {
  await insert(['r']);
  const branch = {onMatch: [{method: 'insert', data: {f: {seen: 'yes'}}}]};
  assert.deepEqual((await table.row('r').filter({column: 'q'}, branch))[0], true);
  assert.deepEqual((await table.row('r').filter({column: 'absent'}, branch))[0], false);
  const [got] = await table.row('r').get();
  assert.equal(got.data.f.seen[0].value, 'yes');
});

test('rows and families are deleted', async () => {
  await insert(['a1', 'a2', 'b1']);
  await table.row('a1').delete();
  assert.deepEqual(await rowsOf({}), ['a2', 'b1']);
  await table.deleteRows('a');
  assert.deepEqual(await rowsOf({}), ['b1']);
  await table.truncate();
  assert.deepEqual(await rowsOf({}), []);
});

test('an unknown table is not found', async () => {
  await assert.rejects(instance.table('no-such-table').getRows(), {code: NOT_FOUND});
});
