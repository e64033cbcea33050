/**
 * The part of the WebAssembly API that the kernels need. The `DOM` library declares it too, along with a browser's other globals, which
 * would hide mistakes in code for Node.
 */
declare namespace WebAssembly {
  class Memory {
    constructor(descriptor: { readonly initial: number; readonly maximum: number; readonly shared: true });
    readonly buffer: SharedArrayBuffer;
  }
  class Module {
    constructor(bytes: Uint8Array<ArrayBuffer>);
    static customSections(module: Module, name: string): ArrayBuffer[];
  }
  class Instance {
    constructor(module: Module, imports: { readonly env: { readonly memory: Memory } });
    readonly exports: unknown;
  }
  function validate(bytes: Uint8Array<ArrayBuffer>): boolean;
}
