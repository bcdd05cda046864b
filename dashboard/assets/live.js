// Keeps an open page up to date: fetches it again when the server says that something has changed, and changes what
// differs in place, so that focus, scroll and what was typed stay.
'use strict';
(() => {
  const main = document.getElementById('main');
  const sign = document.getElementById('live');
  if (!main || !sign) return; // the login page
  let offset = Date.now() - Date.parse(main.dataset.now); // of this clock to the server's
  let last = Date.now(), heard = last, pending = 0, busy = false, source = null;

  const text = ms => {
    const s = Math.max(0, Math.floor(ms / 1000));
    if (s < 60) return s + ' s';
    if (s < 3600) return Math.floor(s / 60) + ' min ' + s % 60 + ' s';
    if (s < 86400) return Math.floor(s / 3600) + ' h ' + Math.floor(s / 60) % 60 + ' min';
    return Math.floor(s / 86400) + ' d ' + Math.floor(s / 3600) % 24 + ' h';
  };
  const tick = () => {
    const now = Date.now() - offset;
    for (const t of document.querySelectorAll('time.ago')) {
      const is = text(now - Date.parse(t.dateTime));
      if (t.textContent !== is) t.textContent = is;
    }
  };
  const say = is => { if (sign.textContent !== is) sign.textContent = is; };

  async function refresh() {
    pending = 0;
    last = Date.now();
    if (busy) { soon(); return; } // an answer that comes late would undo a newer one
    busy = true;
    try {
      const answer = await fetch(location.href, { headers: { Accept: 'text/html' }, signal: AbortSignal.timeout(15000) });
      if (answer.redirected && new URL(answer.url).pathname === '/login') { location.reload(); return; }
      if (!answer.ok) {
        say('out of date');
        if (answer.status === 429 || answer.status >= 500) setTimeout(soon, 5000);
        return;
      }
      const next = new DOMParser().parseFromString(await answer.text(), 'text/html').getElementById('main');
      offset = Date.now() - Date.parse(next.dataset.now);
      Idiomorph.morph(main, next, {
        ignoreActiveValue: true,
        callbacks: { beforeNodeMorphed: node => !(node.dataset && node.dataset.typed) },
      });
      tick();
      say('live');
    } catch {
      say('no connection');
      setTimeout(soon, 5000);
    } finally {
      busy = false;
    }
  }
  const soon = () => { if (!pending) pending = setTimeout(refresh, Math.max(0, last + 500 - Date.now())); };
  // What was typed into a form is not taken away.
  document.addEventListener('input', event => {
    const form = event.target.closest('form');
    if (form) form.dataset.typed = '1';
  });

  // A hidden page follows nothing: browsers allow few connections to one server.
  function follow() {
    if (document.hidden) {
      if (source) source.close();
      source = null;
    } else if (!source) {
      heard = Date.now();
      source = new EventSource('/live');
      source.addEventListener('here', () => { heard = Date.now(); });
      source.addEventListener('changed', () => { heard = Date.now(); soon(); });
      source.onopen = () => say('live');
      source.onerror = event => {
        say('no connection');
        if (event.target.readyState !== EventSource.CLOSED || event.target !== source) return;
        source = null; // it tries no more: the answer was no stream, as when a token has expired or a server is not ready
        soon();
        setTimeout(follow, 5000);
      };
    }
  }
  document.addEventListener('visibilitychange', follow);
  // The server says every 15 s that it is there: a connection over which nothing comes may be lost without anybody's being told.
  setInterval(() => {
    if (!source || Date.now() - heard < 40000) return;
    source.close();
    source = null;
    say('no connection');
    follow();
    soon();
  }, 5000);
  setInterval(tick, 1000);
  // What was heard of a worker is no change either, and would seem older and older.
  setInterval(() => { if (!document.hidden && document.querySelector('.heard')) soon(); }, 10000);
  if (document.querySelector('progress')) setInterval(soon, 1000); // its steps are no changes of a lock or job
  follow();
})();
