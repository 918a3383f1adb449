// The shapes of what Python sends and of what the page holds, for the type checker alone.

import type { Viewer } from "./viewer.js";

export type Direction = "from" | "to";
export type Fusion = "mean" | "max" | "min";
export type View = "attention" | "rollout" | "relevance" | "similar" | "components" | "pool";

/** As `vit.view.selection.Selection`. */
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

/** A setting of a method. */
export type Setting = "residual" | "fusion" | "discard" | "start_block" | "after_block";

/** Settings of rollout, some of `vit.explain.settings.Settings`. */
export type RolloutSettings = Pick<Selection, "residual" | "fusion" | "discard">;

/** Of `vit.view.payload.pack`, `pack_chain`, `pack_masks` and `pack_features`. */
export interface Header {
  kind: "maps" | "qk" | "chain" | "masks" | "features";
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
  target?: string;
  ceiling?: number;
  decidable?: boolean;
  complete?: boolean;
  block?: number;
  shares?: number[];
  pictures?: number;
  sections: Record<string, [number, number]>;
}

/** How tokens lie: names of the first ones, and the grid of the others. */
export interface TokenLayout {
  prefix: string[];
  split: number;
  rows: number;
  cols: number;
}

/** As in `pages.components.viewer`. */
export interface ComputedMap {
  view: View;
  token: number;
  direction: Direction;
  settings: Partial<Selection>;
  values: number[];
}

/** As in `pages.components.viewer`. */
export interface Method {
  title: string;
  sentence?: string;
  target: string;
  chain: string;
  tokens: boolean;
  settings: Setting[];
}

/** As in `pages.components.viewer`. */
export interface Occlusion {
  target: string;
  before: number;
  after: number[];
  answers: string[];
}

/** As `vit.explain.sensitivity.Verdict`. */
export interface Verdict {
  correlation: number;
  reach: number;
  p: number;
  error: number;
}

/** What Python tells a viewer. */
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
  masks?: string;
  features?: string | null;
  model?: string;
  alone?: boolean;
}

/** What of `vit.model.config.ViTConfig` the lesson's forward pass needs. */
export interface Config {
  image_size: [number, number];
  patch_size: number;
  channels: number;
  dim: number;
  depth: number;
  heads: number;
  mlp_dim: number;
  prefix: string[];
  eps: number;
  norm: "before_pool" | "after_pool" | "none";
  pool: "cls" | "mean";
}

/** As `vit.images.preprocess.Preprocess`. */
export interface Preprocess {
  size: [number, number];
  resize: "squash" | "shortest";
  resize_to: number;
  interpolation: "bilinear" | "bicubic" | "lanczos";
  mean: number[];
  std: number[];
}

/** Of `vit.view.lesson_weights.pack_weights`. */
export interface PackedTensor {
  name: string;
  rows: number;
  cols: number;
  rounded: boolean;
}

/** Of `vit.view.lesson.model_bytes`. */
export interface LessonHeader {
  name: string;
  config: Config;
  preprocess: Preprocess;
  labels: string[];
  tensors: PackedTensor[];
  middle: number;
  colormaps: string[];
  samples: { name: string; credit: string }[];
  accuracy: number | null;
}

/** A map of the grid. */
export interface Cell {
  r: number;
  c: number;
}

/** What came of an act: something to paint, or a choice that Python hears of too; "" is nothing. */
export type Effect = "" | "pointed" | "chosen";

/** What Streamlit hands a component. */
export interface Mount {
  data: any;
  parentElement: HTMLElement;
  setStateValue(name: string, value: unknown): void;
  setTriggerValue(name: string, value: unknown): void;
}

/** What anywidget hands `kernel_link.js`: a widget of the kernel. */
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
