// Keeps a page current: it applies the server's updates, counts elapsed times, and adds keys. Pages are complete without it.
import {applyUpdate} from './update.js';
import {showAges} from './ages.js';
import {bindKeys} from './keys.js';

const page = document.body.dataset.page;
const live = document.getElementById('live');

function setLive(on, text) {
  live.hidden = false;
  live.className = 'live ' + (on ? 'on' : 'off');
  if (live.textContent !== text) live.textContent = text;
}

let source = null;

function connect() {
  if (source || !page || document.hidden) return;
  source = new EventSource('/events?page=' + encodeURIComponent(page));
  source.onopen = () => setLive(true, 'live');
  source.onmessage = (event) => {
    const update = JSON.parse(event.data);
    applyUpdate(update);
    showAges();
    setLive(!update.gone, update.gone || 'live'); // an object that was deleted may be created again
  };
  source.onerror = () => {
    if (source && source.readyState === EventSource.CLOSED) { // refused: access has expired, or berth page has ended
      setLive(false, 'ended: run berth page again');
      source = null;
    } else {
      setLive(false, 'connecting');
    }
  };
}

// A hidden page costs nothing.
document.addEventListener('visibilitychange', () => {
  if (!document.hidden) return connect();
  if (source) source.close();
  source = null;
});

showAges();
setInterval(() => { if (!document.hidden) showAges(); }, 1000);
bindKeys();
connect();
