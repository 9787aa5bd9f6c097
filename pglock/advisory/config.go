package advisory

import (
	"fmt"
	"log/slog"
	"time"
)

const (
	// DefaultCheckEvery is how often a session lock is looked after.
	DefaultCheckEvery = 2 * time.Second

	minCheckEvery = 100 * time.Millisecond
	maxCheckEvery = time.Minute
)

// Config tunes a Client. The zero value is ready to use.
type Config struct {
	// CheckEvery is the time between two looks at the session of a lock: 100 ms to 1 min, by default DefaultCheckEvery. A
	// session that does not answer for twice that time is lost (so a holder hears of a silent network within three times
	// CheckEvery); the server gives up on a holder that is silent for four times as long, in whole seconds, and frees the lock.
	CheckEvery time.Duration

	// Logger gets what no call can return: the loss of a lock, once. Default: silent.
	Logger *slog.Logger
}

func (c Config) resolve() (Config, error) {
	if c.CheckEvery == 0 {
		c.CheckEvery = DefaultCheckEvery
	}
	if c.CheckEvery < minCheckEvery || c.CheckEvery > maxCheckEvery {
		return c, fmt.Errorf("%w: Config.CheckEvery %v must be at least %v and at most %v", ErrInvalidOption, c.CheckEvery, minCheckEvery, maxCheckEvery)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// answerWithin is how long a session that is looked at may take to answer.
func (c Config) answerWithin() time.Duration { return 2 * c.CheckEvery }

// silence is how long the server lets a holder be silent, in the seconds and milliseconds that its settings want: longer than
// CheckEvery and answerWithin together, so that on a cut network the holder hears of it first.
func (c Config) silence() (keepalive, userTimeout string) {
	seconds := (c.CheckEvery + time.Second - 1) / time.Second
	return fmt.Sprint(int64(seconds)), fmt.Sprint(4 * int64(seconds) * 1000)
}
