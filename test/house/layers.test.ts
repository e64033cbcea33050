/**
 * The direction of imports in src/: the tree is held to it, and each rule is shown a tree that breaks it.
 */
import { describe, expect, it } from 'vitest';
import {
  cycleFaults,
  type DeclaredPackages,
  directionFaults,
  doorFaults,
  importsOf,
  packagesBehind,
  specifierFaults,
  surfaceFaults,
} from './imports.ts';
import { isTest, parseSource, readSources, readText, type Source } from './sources.ts';

type Names = Readonly<Record<string, string>>;
const packageJson = JSON.parse(readText('package.json')) as {
  readonly name: string;
  readonly exports: Readonly<Record<string, { readonly 'trainyard-source': string }>>;
  readonly dependencies: Names;
  readonly peerDependencies: Names;
  readonly devDependencies: Names;
};

function declaredPackages(): DeclaredPackages {
  const { name, dependencies, peerDependencies, devDependencies } = packageJson;
  const runtime = new Set(Object.keys({ ...dependencies, ...peerDependencies }));
  return { name, runtime, development: new Set(Object.keys(devDependencies)) };
}

function tree(files: Readonly<Record<string, string>>): readonly Source[] {
  return Object.entries(files).map(([path, text]) => parseSource(path, text));
}

/** Which framework a sub-path is for; the others need none, not even to be type-checked. */
const FOR: Readonly<Record<string, readonly string[]>> = {
  './langchain': ['@langchain/core'],
  './osmosis/openai-agents': ['@openai/agents'],
  './osmosis/strands': ['@strands-agents/sdk'],
  './strands': ['@strands-agents/sdk'],
};
/** Dependencies that the core cannot do without. YAML is loaded by who has a file of it. */
const ALWAYS = ['zod', 'csv-parse', 'hyparquet', '@huggingface/jinja', '@huggingface/tokenizers'];

const surface = Object.entries(packageJson.exports).map(([subPath, { 'trainyard-source': file }]) => ({
  subPath,
  path: file.slice(2),
}));

describe('the source tree', () => {
  const sources = readSources('src');

  it('imports only downwards, never a sibling, and rooms only when they are asked for', () => {
    expect(sources.length).toBeGreaterThan(0);
    expect(directionFaults(sources)).toEqual([]);
  });

  it('uses no global that Node 22 lacks', () => {
    const newer =
      /\b(new (Async)?DisposableStack|instanceof SuppressedError|new SuppressedError|Promise\.try|RegExp\.escape|Error\.isError)\b/;
    expect(newer.test('new AsyncDisposableStack()')).toBe(true);
    expect(sources.filter(({ path, text }) => !isTest(path) && newer.test(text)).map(({ path }) => path)).toEqual([]);
  });

  it('has no import cycles', () => {
    expect(cycleFaults(sources)).toEqual([]);
  });

  it('imports only existing files by full name, Node, and packages that users install', () => {
    expect(specifierFaults(sources, declaredPackages())).toEqual([]);
  });

  it('re-exports by name in the files directly in src/ and has no barrels below', () => {
    expect(surfaceFaults(sources)).toEqual([]);
  });

  it.each(surface)('$subPath loads the packages it is for, and no other that users may lack', ({ subPath, path }) => {
    const behind = [...packagesBehind(path, sources)].filter((name) => !ALWAYS.includes(name));
    expect(behind).toEqual(FOR[subPath] ?? []);
  });
});

describe('packages/testing', () => {
  it('imports itself, Node, its dependencies and the public surface', () => {
    const sources = readSources('packages/testing/src');
    expect(sources.length).toBeGreaterThan(0);
    expect(doorFaults(sources)).toEqual([]);
    expect(cycleFaults(sources)).toEqual([]);
    const { name, dependencies } = JSON.parse(readText('packages/testing/package.json')) as typeof packageJson;
    const runtime = new Set(Object.keys(dependencies));
    const all = [...sources, ...readSources('src')];
    const faults = specifierFaults(all, { name, runtime, development: new Set() });
    expect(faults.filter((fault) => fault.startsWith('packages/'))).toEqual([]);
    const inside = tree({
      'packages/testing/src/a.ts': "import './b.ts'; import '../../../src/core/c.ts'; import '../../../src/d.ts';",
    });
    expect(doorFaults(inside)).toEqual([expect.stringContaining('imports src/core/c.ts, which is not public')]);
  });
});

describe('the import scanner', () => {
  it('sees every form with a literal specifier, and nothing in comments or strings', () => {
    const text = [
      "import a from './a.ts';",
      "import type { B } from './b.ts';",
      "export * from './c.ts';",
      "export { d } from './d.ts';",
      "type E = import('./e.ts').E;",
      "const f = await import('./f.ts');",
      'const g = await import(`./g.ts`);',
      "const h = require('./h.ts');",
      "import './i.ts';",
      "// import x from './comment.ts'",
      'const s = "import x from \'./string.ts\'";',
      'const later = await import(s);',
    ].join('\n');
    const seen = importsOf(parseSource('src/run/x.ts', text)).map(({ specifier, line }) => `${line} ${specifier}`);
    expect(seen.sort()).toEqual('abcdefghi'.split('').map((letter, index) => `${index + 1} ./${letter}.ts`));
  });
});

describe('the direction rule', () => {
  it.each([
    ['upwards', 'src/core/a.ts', '../run/b.ts', 'upwards from L0 to L5'],
    ['a type upwards', 'src/tokens/a.ts', '../gateway/b.ts', 'upwards from L1 to L2'],
    ['a sibling', 'src/store/a.ts', '../tasks/b.ts', 'a sibling on L2'],
    ['a sibling from a test', 'src/store/a.test.ts', '../tasks/b.ts', 'move the test under test/'],
    ['a room with the module', 'src/run/a.ts', '../engines/tinker/b.ts', 'load it where it is asked for'],
    ['another room', 'src/shapes/flows/a.ts', '../areal/b.ts', 'another room'],
    ['the command line from a room', 'src/shapes/flows/a.ts', '../../cli/b.ts', 'pass what is needed'],
    ['the public surface', 'src/cli/a.ts', '../index.ts', 'a file of the public surface'],
    ['a file outside src/', 'src/cli/a.ts', '../../scripts/b.ts', 'outside src/'],
    ['the kernels', 'src/engines/embedded/a.ts', './kernels/b.ts', 'border of the WASM kernels'],
    ['the page', 'src/view/a.ts', './page/b.tsx', 'the page, which is bundled'],
  ])('refuses importing %s', (_, from, specifier, reason) => {
    const faults = directionFaults(tree({ [from]: `import type { B } from '${specifier}';` }));
    expect(faults).toEqual([expect.stringContaining(reason)]);
    expect(faults[0]).toContain(`${from}:1: `);
  });

  it('refuses a folder that the plan does not know', () => {
    expect(directionFaults(tree({ 'src/shared/a.ts': '' }))).toEqual([expect.stringContaining('src/shared/ is in neither ring')]);
  });

  it('accepts a lower level, the own folder, a room that is loaded later, the first ring from a room, fixtures in tests, and anything from the public surface', () => {
    const sources = tree({
      'src/run/a.ts': "import '../store/b.ts'; import '../core/c.ts'; import './d.ts';",
      'src/run/a.test.ts': "import '../../test/fixtures/e.ts';",
      'src/run/f.ts': "await import('../engines/tinker/b.ts');",
      'src/engines/tinker/b.ts': "import '../run/a.ts';",
      'src/index.ts': "export { a } from './run/a.ts';",
    });
    expect(directionFaults(sources)).toEqual([]);
  });
});

it('the page imports core/, types of the rest, and what is bundled', () => {
  const page = (text: string) =>
    tree({ 'src/view/page/a.tsx': text, 'src/view/page/b.tsx': '', 'src/core/c.ts': '', 'src/run/d.ts': '' });
  const accepted = "import './b.tsx'; import './a.css'; import '../../core/c.ts'; import type { D } from '../../run/d.ts';";
  expect(directionFaults(page(accepted))).toEqual([]);
  expect(directionFaults(page("import '../../run/d.ts';"))).toEqual([expect.stringContaining('which a browser lacks')]);
  const packages = { name: 'trainyard', runtime: new Set<string>(), development: new Set(['preact', 'vitest']) };
  const faults = specifierFaults(page(`${accepted} import 'preact/hooks'; import 'vitest';`), packages);
  expect(faults).toEqual([expect.stringContaining("'vitest' is a development package")]);
});

describe('the cycle rule', () => {
  it('reports a circle as a path, also of types within one folder, and not two ways to the same file', () => {
    const files = { 'src/core/a.ts': "import type { B } from './b.ts';", 'src/core/b.ts': "import type { C } from './c.ts';" };
    const circle = tree({ ...files, 'src/core/c.ts': "import type { A } from './a.ts';" });
    const path = 'src/core/a.ts → src/core/b.ts → src/core/c.ts → src/core/a.ts';
    expect(cycleFaults(circle)).toEqual([expect.stringContaining(path)]);
    expect(cycleFaults(tree({ ...files, 'src/core/a.ts': "import './b.ts'; import './c.ts';", 'src/core/c.ts': '' }))).toEqual(
      [],
    );
  });
});

describe('the specifier rule', () => {
  const runtime = new Set(['zod', '@scope/one']);
  const packages: DeclaredPackages = { name: 'trainyard', runtime, development: new Set(['vitest']) };

  it.each<readonly [string, string | undefined]>([
    ['./there', 'does not end in .ts'],
    ['./there.js', 'does not end in .ts'],
    ['./gone.ts', 'does not exist'],
    ['fs', "write 'node:fs'"],
    ['left-pad', 'is not in package.json'],
    ['vitest', 'is a development package'],
    ['trainyard/loop', 'is this package'],
    ...['./there.ts', 'node:fs', 'zod/v4', '@scope/one/deep'].map((specifier) => [specifier, undefined] as const),
  ])('says of %s: %s', (specifier, reason) => {
    const faults = specifierFaults(tree({ 'src/core/a.ts': `import '${specifier}';`, 'src/core/there.ts': '' }), packages);
    expect(faults).toEqual(reason === undefined ? [] : [expect.stringContaining(reason)]);
    expect(specifierFaults(tree({ 'src/core/a.test.ts': "import 'vitest';" }), packages)).toEqual([]);
  });
});

describe('the surface rule', () => {
  it('refuses code and unnamed exports in a public file, and a barrel in a folder', () => {
    const sources = tree({
      'src/index.ts': "export { a } from './core/a.ts';\nexport * from './core/b.ts';\nexport const c = 1;",
      'src/core/all.ts': "export { a } from './a.ts';",
      'src/engines/embedded/kernels/entry.ts': "export { a } from './a';",
    });
    expect(surfaceFaults(sources)).toEqual([
      expect.stringContaining('src/index.ts:2: `export *`'),
      expect.stringContaining('src/index.ts:3: ExportNamedDeclaration'),
      expect.stringContaining('src/core/all.ts: only re-exports'),
    ]);
  });
});
