// Types of the messages from Python and of data on the page; used only by the type checker.

import type { Viewer } from "./viewer.js";

export type Direction = "from" | "to";
export type Fusion = "mean" | "max" | "min";
export type View = "attention" | "rollout" | "relevance" | "similar" | "components" | "pool";

/** See `vit.view.selection.Selection`. */
export interface Selection {
  block: number | Fusion;
  head: number | Fusion;
  token: number;
  pinned: boolean;
  view: View;
  direction: Direction;
  colormap: string;
  opacity: number;
  cover: "weight" | "film";
  smooth: boolean;
  scale: "shared" | "own";
  contour: "none" | "mass" | "otsu";
  mass: number;
  residual: number;
  fusion: Fusion;
  discard: number;
  start_block: number;
  hidden: number[];
  after_block: number;
}

/** Name of a method's setting. */
export type Setting = "residual" | "fusion" | "discard" | "start_block" | "after_block";

/** Settings of rollout, a subset of `vit.explain.settings.Settings`. */
export type RolloutSettings = Pick<Selection, "residual" | "fusion" | "discard">;

/** Header written by `pack`, `pack_chain`, `pack_map`, `pack_masks` and `pack_features` of `vit.view.payload`. */
export interface Header {
  kind: "maps" | "qk" | "chain" | "map" | "masks" | "features";
  blocks: number;
  heads: number;
  tokens: number;
  width: number;
  prefix: string[];
  grid: [number, number];
  picture: { width: number; height: number; type: string };
  box: [number, number, number, number];
  colormaps: string[];
  pool_top?: number;
  artefacts?: number[];
  target?: string;
  ceiling?: number;
  decidable?: boolean;
  complete?: boolean;
  block?: number;
  shares?: number[];
  pictures?: number;
  sections: Record<string, [number, number]>;
}

/** Order of the tokens: the prefix tokens by name, then the grid of patches. */
export interface TokenLayout {
  prefix: string[];
  split: number;
  rows: number;
  cols: number;
}

/** See `vit.view.method_choice.ComputedMap`. */
export interface ComputedMap {
  view: View;
  token: number;
  direction: Direction;
  settings: Partial<Selection>;
  values: number[];
}

/** See `vit.view.method_choice.Method`. */
export interface Method {
  title: string;
  sentence?: string;
  target: string;
  chain: string;
  tokens: boolean;
  settings: Setting[];
  signed: boolean;
}

/** See `pages.components.viewer.Occlusion`. */
export interface Occlusion {
  target: string;
  before: number;
  after: number[];
  answers: string[];
  numbers?: boolean;
}

/** See `pages.components.viewer.Ablation`. */
export interface Ablation {
  hidden: number[];
  target: string;
  before: number;
  after: number;
  answer: string;
  numbers?: boolean;
}

/** See `pages.components.viewer.Answers`. */
export interface Answers {
  bars: [label: string, probability: number, text?: string][];
  target?: string;
  against?: string;
  says: string;
  note: string;
}

/** See `vit.explain.faithfulness_correlation.Verdict`. */
export interface Verdict {
  correlation: number;
  reach: number;
  p: number;
  error: number;
}

/** Message from Python to a viewer, see docs/viewer.md. */
export interface Message {
  name: string;
  payload: string;
  seed: Selection;
  revision: number;
  computed: ComputedMap | null;
  method: Method | null;
  group: string;
  ownView?: boolean;
  compact: boolean;
  paintable: boolean;
  occlusion: Occlusion | null;
  ablation?: Ablation | null;
  answers?: Answers | null;
  masks?: string;
  features?: string | null;
  model?: string;
  alone?: boolean;
}

/** Row and column of a map in the grid. */
export interface Cell {
  r: number;
  c: number;
}

/** Effect of an action: "pointed" requires a repaint, "chosen" also changes the selection sent to Python. */
export type Effect = "" | "pointed" | "chosen";

/** Arguments that Streamlit passes to a component. */
export interface Mount {
  data: any;
  parentElement: HTMLElement;
  setStateValue(name: string, value: unknown): void;
  setTriggerValue(name: string, value: unknown): void;
}

/** The kernel's widget, which anywidget passes to `kernel_link.js`. */
export interface Link {
  get(name: string): any;
  send(content: object): void;
  on(event: string, act: (...given: any[]) => void): void;
  off(event: string, act: (...given: any[]) => void): void;
}

declare global {
  var __vitPayloads: Map<string, { bytes: Uint8Array | null; decoded: any; feeders: number }> | undefined;
  var __vitHeaders: Map<string, Header> | undefined;
  var __vitNames: Map<string, string> | undefined;
  var __vitGroups: Map<string, Set<Viewer>> | undefined;
  var __vitSelections: Map<string, { revision: number | null; selection: Selection }> | undefined;
  var __vitWatchdog: object | undefined;

  interface Element {
    __vitViewer?: Viewer;
    __vitStats?: object;
  }
}
