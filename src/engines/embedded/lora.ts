/**
 * Low-rank adapters: y = W x + (alpha / rank) · B (A x) for chosen linear layers, while W stays as it is. Only A and B are trained: this
 * file gives each of them its place in the flat buffer of trained parameters, under the names that PEFT uses.
 */
import { TrainyardError } from '../../core/errors.ts';
import { type Flat, FlatBuilder, type LinearName, type LlamaConfig, linearsOf, planLayout } from './model/config.ts';

export const LORA_TARGETS = ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj'] as const;
type LoraTarget = (typeof LORA_TARGETS)[number];

export interface LoraSettings {
  readonly rank: number;
  readonly alpha: number;
  readonly targets: readonly LoraTarget[];
}

/** Settings, or a decision by the number of the model's parameters. */
export type LoraChoice = LoraSettings | ((parameters: number) => LoraSettings | undefined);

export function loraFor(choice: LoraChoice | undefined, config: LlamaConfig): LoraSettings | undefined {
  return typeof choice === 'function' ? choice(planLayout(config).length) : choice;
}

const MOST_RANK = 256;

/** One module's pair of matrices: offsets in floats of A [rank, inputs] and B [outputs, rank]. */
interface AdapterPart {
  readonly a: number;
  readonly b: number;
  /** Its outputs among those of its linear layer. */
  readonly column: number;
  readonly outputs: number;
}

/** The adapters of one linear layer, which multiplies several modules at once; their A are adjacent and multiplied at once too. */
export type Adapters = readonly AdapterPart[];

export interface LoraLayout extends Flat {
  readonly rank: number;
  readonly scale: number;
  readonly layers: readonly Readonly<Partial<Record<LinearName, Adapters>>>[];
}

export function planLora(config: LlamaConfig, { rank, alpha, targets }: LoraSettings): LoraLayout {
  checkLora({ rank, alpha, targets });
  const flat = new FlatBuilder();
  const layers = Array.from({ length: config.layers }, (_, l) => {
    const linears: Partial<Record<LinearName, Adapters>> = {};
    for (const { name, inputs, modules } of linearsOf(config)) {
      const adapted = modules.filter(({ module }) => isTarget(targets, module));
      const path = (module: string) => `base_model.model.model.layers.${l}.${module}`;
      const as = adapted.map(({ module }) => flat.add(`${path(module)}.lora_A.weight`, rank, inputs));
      const bs = adapted.map(({ module, outputs }) => flat.add(`${path(module)}.lora_B.weight`, outputs, rank));
      if (adapted.length > 0) {
        linears[name] = adapted.map(({ column, outputs }, i) => ({ a: as[i]!, b: bs[i]!, column, outputs }));
      }
    }
    return linears;
  });
  return { ...flat.built(), rank, scale: alpha / rank, layers };
}

function isTarget(targets: readonly string[], module: string): boolean {
  return targets.includes(module.slice(module.lastIndexOf('.') + 1));
}

function checkLora({ rank, alpha, targets }: LoraSettings): void {
  const refuse = (found: string): never => {
    throw new TrainyardError('USAGE', found, 'such as --lora-rank 16 --lora-alpha 32');
  };
  if (!Number.isSafeInteger(rank) || rank < 1 || rank > MOST_RANK)
    refuse(`the rank of LoRA is ${rank}, expected 1 to ${MOST_RANK}`);
  if (!Number.isFinite(alpha) || alpha <= 0) refuse(`the alpha of LoRA is ${alpha}, expected a positive number`);
  const unknown = targets.find((name) => !LORA_TARGETS.includes(name));
  if (unknown !== undefined || targets.length === 0) {
    refuse(`LoRA cannot adapt ${unknown ?? 'nothing'}, expected some of ${LORA_TARGETS.join(', ')}`);
  }
}
