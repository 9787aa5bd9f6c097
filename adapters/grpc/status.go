package fencegrpc

import (
	"fmt"
	"strconv"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fencedlock/fencedlock/fence"
)

// Key is the key of the metadata that carries the token of a call: a decimal number, without sign or leading zeros. It is the
// header of package fencehttp, as HTTP/2 spells it.
const Key = "fencing-token"

// Domain is that of the ErrorInfo which a refusal has among its details.
const Domain = "fencedlock"

// The reasons of refusals, and their codes.
const (
	StaleToken      = "STALE_TOKEN"      // Aborted: a later token was here
	MissingToken    = "MISSING_TOKEN"    // InvalidArgument: the call has none
	InvalidToken    = "INVALID_TOKEN"    // InvalidArgument: it is no token, or was never granted
	InvalidResource = "INVALID_RESOURCE" // InvalidArgument: what the call is about can have no fence
	OtherLock       = "OTHER_LOCK"       // FailedPrecondition: the resource belongs to another lock
	Unavailable     = "UNAVAILABLE"      // Unavailable: the fence cannot be asked
	FenceLost       = "FENCE_LOST"       // Unknown: the handler has run, and the fence may have been let go of before it had ended
)

// The metadata of the ErrorInfo of a StaleToken.
const (
	tokenKey     = "token"     // the call's
	lastTokenKey = "lastToken" // the later one that was here
	behindKey    = "behind"    // "true" where the lock service has not drawn that one yet: see fence.ErrBehind
)

func format(t fence.Token) string { return strconv.FormatInt(int64(t), 10) }

// parse takes what the metadata can hold, and nothing that merely looks like it.
func parse(values []string) (fence.Token, error) {
	if len(values) != 1 {
		return 0, fmt.Errorf("%d values of %s, want one", len(values), Key)
	}
	n, err := strconv.ParseInt(values[0], 10, 64)
	if err != nil || n <= 0 || n >= 1<<53 || format(fence.Token(n)) != values[0] {
		return 0, fmt.Errorf("%s %.40q: want a decimal number from 1 to below 2^53", Key, values[0])
	}
	return fence.Token(n), nil
}

func refusal(code codes.Code, reason, message string, facts map[string]string) error {
	s, err := status.New(code, message).WithDetails(&errdetails.ErrorInfo{Domain: Domain, Reason: reason, Metadata: facts})
	if err != nil { // it has no text that is not ours
		return status.Error(code, message)
	}
	return s.Err()
}

// staleIn finds the refusal of a token in what a call came back with. One of another token is somebody else's, which the
// service has met on its own calls and passes on.
func staleIn(err error, token fence.Token) (last fence.Token, behind, ok bool) {
	for _, detail := range status.Convert(err).Details() {
		info, ok := detail.(*errdetails.ErrorInfo)
		if !ok || info.Domain != Domain || info.Reason != StaleToken || info.Metadata[tokenKey] != format(token) {
			continue
		}
		if last, err := parse([]string{info.Metadata[lastTokenKey]}); err == nil && last > token {
			return last, info.Metadata[behindKey] == "true", true
		}
	}
	return 0, false, false
}
