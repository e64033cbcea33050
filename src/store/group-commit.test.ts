/** Group commit on a bare database: who is acknowledged, and what is left, when one write or all of them fail. */
import { DatabaseSync } from 'node:sqlite';
import { beforeEach, describe, expect, it } from 'vitest';
import { type DiskSync, GroupCommit } from './sqlite.ts';

let disk: DiskSync & { syncs: number };
let database: DatabaseSync;
let writes: GroupCommit;

beforeEach(() => {
  database = new DatabaseSync(':memory:');
  database.exec('CREATE TABLE notes (text TEXT NOT NULL) STRICT');
  disk = { syncs: 0, later: async () => void disk.syncs++, now: () => void disk.syncs++ };
  writes = new GroupCommit(database, disk);
});

function add(text: string): void {
  database.prepare('INSERT INTO notes VALUES (?)').run(text);
}

function notes(): unknown[] {
  return database
    .prepare('SELECT text FROM notes ORDER BY rowid')
    .all()
    .map((row) => row.text);
}

async function statuses(asked: readonly Promise<void>[]): Promise<readonly string[]> {
  return (await Promise.allSettled(asked)).map((result) => result.status);
}

describe('group commit', () => {
  it('undoes all of a refused write and nothing of its neighbours', async () => {
    const refusal = new Error('changed its mind');
    const refused = writes.write(() => {
      add('half');
      throw refusal;
    });
    const asked = [writes.write(() => add('before')), refused, writes.write(() => add('after'))];
    expect(await statuses(asked)).toEqual(['fulfilled', 'rejected', 'fulfilled']);
    await expect(refused).rejects.toBe(refusal);
    expect(notes()).toEqual(['before', 'after']);
  });

  it('acknowledges none when the transaction is lost, and works again afterwards', async () => {
    const asked = [
      writes.write(() => add('before')),
      writes.write(() => {
        // What SQLite does by itself when the disk is full.
        database.exec('ROLLBACK');
        throw new Error('disk full');
      }),
      writes.write(() => add('after')),
    ];
    expect(await statuses(asked)).toEqual(['rejected', 'rejected', 'rejected']);
    expect(notes()).toEqual([]);
    await writes.write(() => add('later'));
    expect(notes()).toEqual(['later']);
  });

  it('acknowledges none when the commit fails, and leaves no transaction open', async () => {
    // A deferred foreign key is checked at COMMIT.
    database.exec('CREATE TABLE parents (id INTEGER PRIMARY KEY)');
    database.exec('CREATE TABLE children (parent INTEGER REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED)');
    const asked = [writes.write(() => add('before')), writes.write(() => database.exec('INSERT INTO children VALUES (7)'))];
    expect(await statuses(asked)).toEqual(['rejected', 'rejected']);
    expect(database.isTransaction).toBe(false);
    expect(notes()).toEqual([]);
  });

  it('acknowledges a write only after a sync that began after its commit; writes meanwhile share the next one', async () => {
    const started: PromiseWithResolvers<void>[] = [];
    const slow = new GroupCommit(database, {
      later: () => {
        const one = Promise.withResolvers<void>();
        started.push(one);
        return one.promise;
      },
      now: () => {},
    });
    const acknowledged: string[] = [];
    const ask = (text: string) => slow.write(() => add(text)).then(() => acknowledged.push(text));
    const turn = () => new Promise((resolve) => setImmediate(() => setImmediate(resolve)));
    const first = ask('first');
    await turn();
    const others = [ask('second'), ask('third')];
    await turn();
    expect(notes()).toEqual(['first', 'second', 'third']);
    expect(started.length).toBe(1);
    started[0]?.resolve();
    await first;
    await turn();
    expect(acknowledged).toEqual(['first']);
    expect(started.length).toBe(2);
    started[1]?.resolve();
    await Promise.all(others);
    expect(acknowledged).toEqual(['first', 'second', 'third']);
  });

  it('acknowledges none of the writes whose sync failed, and nothing after it: what a later sync says proves nothing', async () => {
    disk.later = () => Promise.reject(new Error('EIO'));
    expect(await statuses([writes.write(() => add('one')), writes.write(() => add('two'))])).toEqual(['rejected', 'rejected']);
    disk.later = async () => {};
    expect(await statuses([writes.write(() => add('three'))])).toEqual(['rejected']);
    const last = writes.write(() => add('four'));
    await writes.close();
    await expect(last).rejects.toThrow('EIO');
  });

  it('has written, synced and acknowledged everything when it is closed', async () => {
    const asked = writes.write(() => add('now'));
    await writes.close();
    await asked;
    expect(notes()).toEqual(['now']);
    expect(disk.syncs).toBeGreaterThan(0);
  });
});
