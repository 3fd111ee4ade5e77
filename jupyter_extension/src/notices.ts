// The notices of this job, as its notebook server has them from the Manager, and how they are told.

import { ServerConnection } from '@jupyterlab/services';

export interface Notice {
  id: string;
  kind: string;
  level: string;
  text: string;
  until: string | null;
  keep: boolean;
  seen: boolean;
}

export interface Answer {
  ok: boolean;
  text: string;
}

const STOPS = new Set(['preempted', 'maintenance', 'idle', 'lifetime']);
const LATE = 120_000; // milliseconds after its time in which a stop explains why the server is gone

const pause = (milliseconds: number) => new Promise(resolve => setTimeout(resolve, milliseconds));

// A window that nobody sees asks nothing: its requests would look like use of the job to the Hub's proxy.
const visible = () =>
  new Promise<void>(resolve => {
    const look = () => {
      if (document.visibilityState === 'hidden') {
        return;
      }
      document.removeEventListener('visibilitychange', look);
      resolve();
    };
    document.addEventListener('visibilitychange', look);
    look();
  });

// The reader's own clock, with the day where it is not today.
function moment(until: string): string {
  const at = new Date(until);
  const day = at.toDateString() === new Date().toDateString() ? {} : ({ day: 'numeric', month: 'long' } as const);
  return `at ${at.toLocaleString([], { hour: '2-digit', minute: '2-digit', ...day })}`;
}

export function sentence({ text, until }: Notice): string {
  if (!until) {
    return text.replaceAll('{when}', '').replace(/ +/g, ' ').trim();
  }
  return text.includes('{when}') ? text.replaceAll('{when}', moment(until)) : `${text} (${moment(until)})`;
}

export function timeLeft(until: string): string {
  const minutes = Math.floor((new Date(until).getTime() - Date.now()) / 60_000);
  if (minutes < 0) {
    return 'now';
  }
  if (minutes < 1) {
    return 'in less than a minute';
  }
  const hours = Math.floor(minutes / 60);
  return `in ${hours ? `${hours} h ` : ''}${minutes % 60} min`;
}

export class Notices {
  list: Notice[] = [];
  changed: () => void = () => undefined;
  private base: string;

  constructor(private settings: ServerConnection.ISettings) {
    this.base = `${settings.baseUrl.replace(/\/$/, '')}/dlspawner/notices`;
  }

  // What stops the job first, if that is known.
  get stop(): Notice | undefined {
    const stops = this.list.filter(notice => STOPS.has(notice.kind) && notice.until);
    return stops.sort((one, other) => one.until!.localeCompare(other.until!))[0];
  }

  // Why the server is gone: the stop whose time has come.
  get stopped(): Notice | undefined {
    const stop = this.stop;
    return stop && Math.abs(new Date(stop.until!).getTime() - Date.now()) < LATE ? stop : undefined;
  }

  async keep(id: string): Promise<Answer> {
    const { ok, content } = await this.ask(`/${id}/keep`, 'POST');
    const text = ok ? content.said || 'The job goes on.' : content.message || 'That did not work. Try again soon.';
    return { ok, text };
  }

  async see(id: string): Promise<void> {
    await this.ask(`/${id}/seen`, 'POST'); // without an answer it comes back in the next window, which is right
  }

  async follow(): Promise<void> {
    let version = '';
    let failures = 0;
    for (;;) {
      await visible();
      const started = Date.now();
      const { ok, status, content } = await this.ask(`?after=${encodeURIComponent(version)}`);
      if (status === 404) {
        return; // this server is no job of dlspawner
      }
      if (ok && Array.isArray(content.notices)) {
        failures = 0;
        version = content.version;
        this.list = content.notices;
        this.changed();
        if (Date.now() - started < 1000) {
          await pause(1000);
        }
      } else {
        failures += 1;
        await pause(Math.min(60_000, 2000 * 2 ** Math.min(failures, 5)) * (0.5 + Math.random() / 2));
      }
    }
  }

  private async ask(path: string, method = 'GET'): Promise<{ ok: boolean; status: number; content: any }> {
    try {
      const answer = await ServerConnection.makeRequest(`${this.base}${path}`, { method }, this.settings);
      return { ok: answer.ok, status: answer.status, content: await answer.json().catch(() => ({})) };
    } catch {
      return { ok: false, status: 0, content: {} };
    }
  }
}
