/** Group commit on a bare database: who is acknowledged, and what is left, when one write or all of them fail. */
import { DatabaseSync } from 'node:sqlite';
import { beforeEach, describe, expect, it } from 'vitest';
import { GroupCommit } from './group-commit.ts';

let database: DatabaseSync;
let writes: GroupCommit;

beforeEach(() => {
  database = new DatabaseSync(':memory:');
  database.exec('CREATE TABLE notes (text TEXT NOT NULL) STRICT');
  writes = new GroupCommit(database);
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

  it('has written when flush returns', () => {
    void writes.write(() => add('now'));
    writes.flush();
    expect(notes()).toEqual(['now']);
  });
});
