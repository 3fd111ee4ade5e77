// Notices of a dlspawner job in JupyterLab: as notifications, in the status bar with the time left, and in full on a
// panel. When the server is gone, the dialog says why as far as that was told. Texts become text, never HTML.

import {
  ConnectionLost,
  IConnectionLost,
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import { IStatusBar } from '@jupyterlab/statusbar';
import { bellIcon } from '@jupyterlab/ui-components';
import { Widget } from '@lumino/widgets';

import { Notice, Notices, sentence, timeLeft } from './notices';

const PANEL = 'dlspawner-notices';
const SECONDS = 10; // between two looks at the clock
let notices: Notices | undefined;

async function keep(of: Notices, id: string): Promise<void> {
  const { ok, text } = await of.keep(id);
  Notification.emit(text, ok ? 'success' : 'error', { autoClose: ok ? 8000 : false });
}

function element(tag: string, text: string, style: Partial<CSSStyleDeclaration> = {}): HTMLElement {
  const made = document.createElement(tag);
  made.textContent = text;
  Object.assign(made.style, style);
  return made;
}

class Panel extends Widget {
  constructor(private of: Notices) {
    super();
    this.id = PANEL;
    this.title.icon = bellIcon;
    this.title.caption = 'Notices about this job';
    Object.assign(this.node.style, { overflow: 'auto', padding: '8px', background: 'var(--jp-layout-color1)' });
  }

  show_(): void {
    const shown = this.of.list.map(notice => this.entry(notice));
    this.node.replaceChildren(
      element('h3', 'Notices about this job', { margin: '4px 0 8px' }),
      ...(shown.length ? shown : [element('p', 'There are none.')])
    );
  }

  private entry(notice: Notice): HTMLElement {
    const entry = element('div', '', { borderTop: '1px solid var(--jp-border-color2)', padding: '8px 0' });
    entry.append(element('p', sentence(notice), { margin: '0 0 4px', overflowWrap: 'anywhere' }));
    if (notice.until) {
      entry.append(element('p', `That is ${timeLeft(notice.until)}.`, { margin: '0 0 4px' }));
    }
    if (notice.keep) {
      const button = element('button', 'Keep it running');
      button.className = 'jp-mod-styled jp-mod-accept';
      button.addEventListener('click', () => void keep(this.of, notice.id));
      entry.append(button);
    }
    return entry;
  }
}

// What stays until its person closes it; closing says that it was read.
class Toasts {
  private shown = new Map<string, { toast: string; message: string }>();

  constructor(
    private of: Notices,
    private open: () => void
  ) {
    Notification.manager.changed.connect((_, change) => {
      if (change.type !== 'removed') {
        return;
      }
      for (const [id, { toast }] of [...this.shown]) {
        if (toast === change.notification.id) {
          this.shown.delete(id);
          void of.see(id);
        }
      }
    });
  }

  show(): void {
    const open = new Map(this.of.list.filter(notice => !notice.seen).map(notice => [notice.id, notice]));
    for (const [id, { toast }] of [...this.shown]) {
      if (!open.has(id)) {
        this.shown.delete(id); // first, or its end would count as read
        Notification.dismiss(toast);
      }
    }
    for (const [id, notice] of open) {
      const message = sentence(notice);
      const known = this.shown.get(id);
      if (!known) {
        const type = (['info', 'warning', 'error'] as const).find(level => level === notice.level) ?? 'warning';
        const toast = Notification.emit(message, type, { autoClose: false, actions: this.actions(notice) });
        this.shown.set(id, { toast, message });
      } else if (known.message !== message) {
        known.message = message;
        Notification.update({ id: known.toast, message, autoClose: false, actions: this.actions(notice) });
      }
    }
  }

  private actions(notice: Notice): Notification.IAction[] {
    const all: Notification.IAction = { label: 'Read it all', callback: this.open }; // JupyterLab cuts long ones
    const button: Notification.IAction = {
      label: 'Keep it running',
      displayType: 'accent',
      callback: () => void keep(this.of, notice.id)
    };
    return notice.keep ? [button, all] : [all];
  }
}

const show: JupyterFrontEndPlugin<void> = {
  id: 'dlspawner-jupyter:notices',
  description: 'Shows what will happen to this job, before it does.',
  autoStart: true,
  optional: [IStatusBar],
  activate: (app: JupyterFrontEnd, statusBar: IStatusBar | null) => {
    const mine = (notices = new Notices(app.serviceManager.serverSettings));
    const panel = new Panel(mine);
    const open = () => app.shell.activateById(PANEL);
    const toasts = new Toasts(mine, open);
    const status = new Widget({ node: element('button', '', { border: 'none', background: 'none', cursor: 'pointer' }) });
    status.node.style.color = 'inherit';
    status.node.addEventListener('click', open);

    const look = () => {
      panel.show_();
      const stop = mine.stop;
      status.node.textContent = stop ? `Job stops ${timeLeft(stop.until!)}` : mine.list.length ? 'Job: notices' : '';
      status.node.title = stop ? sentence(stop) : 'Notices about this job';
      status.setHidden(!mine.list.length);
    };
    look();
    mine.changed = () => {
      look();
      toasts.show();
    };
    setInterval(() => mine.list.length && look(), 1000 * SECONDS);
    app.shell.add(panel, 'right', { rank: 900 });
    statusBar?.registerStatusItem(PANEL, { item: status, align: 'right', rank: 1000 });
    void app.restored.then(() => mine.follow());
  }
};

// JupyterHub's own dialog says "Server unavailable or unreachable", also of a queued job.
const lost: JupyterFrontEndPlugin<IConnectionLost> = {
  id: 'dlspawner-jupyter:connection-lost',
  description: 'Says why the server of this job is gone.',
  autoStart: true,
  requires: [JupyterFrontEnd.IPaths],
  provides: IConnectionLost,
  activate: (_: JupyterFrontEnd, { urls }: JupyterFrontEnd.IPaths): IConnectionLost => {
    if (!urls.hubPrefix) {
      return ConnectionLost;
    }
    let asks = false;
    return async () => {
      if (asks) {
        return;
      }
      asks = true;
      const stop = notices?.stopped;
      const unknown = 'It may have ended or be queued, or the network may be down. The page of the job says which.';
      const { button } = await showDialog({
        title: stop ? 'This job was stopped' : 'This job does not answer',
        body: stop ? sentence(stop) : unknown,
        buttons: [Dialog.cancelButton({ label: 'Close' }), Dialog.okButton({ label: 'Show the job' })]
      });
      asks = false;
      if (button.accept) {
        window.location.assign(urls.base); // the Hub answers there with the place in the queue
      }
    };
  }
};

// *Terminal* on the page Jobs leads here, with this word in the address.
const terminal: JupyterFrontEndPlugin<void> = {
  id: 'dlspawner-jupyter:terminal',
  description: 'Opens a terminal for links with ?terminal.',
  autoStart: true,
  activate: (app: JupyterFrontEnd) => {
    if (!new URLSearchParams(window.location.search).has('terminal')) {
      return;
    }
    void app.restored.then(() => {
      const address = new URL(window.location.href);
      address.searchParams.delete('terminal');
      window.history.replaceState({}, '', address); // a reload opens no second one
      return app.commands.execute('terminal:create-new');
    });
  }
};

export default [show, lost, terminal];
